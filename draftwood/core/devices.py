"""What code must know of a device."""

import torch


def reads_without_sync(device: torch.device) -> bool:
    """Whether reading a number from a tensor there (`item`, `tolist`, `bool`) waits for nothing.

    Elsewhere each such question waits until the device has done all it was told to. Between a
    draft and its commit the engine asks one: for the verdict.
    """
    return device.type == "cpu"
