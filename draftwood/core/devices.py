"""Properties of devices."""

import torch


def reads_without_sync(device: torch.device) -> bool:
    """Whether reading a number from a tensor there (`item`, `tolist`, `bool`) does not wait.

    On other devices each read waits until all queued work is done. Between a draft and its commit
    the engine reads once: the verdict.
    """
    return device.type == "cpu"
