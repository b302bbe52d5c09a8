"""Which kernels a pipeline's target runs on."""

import logging
from collections.abc import Callable
from typing import get_args

import torch

from draftwood.core.errors import RequestError, UnsupportedTarget
from draftwood.core.kernels.available import KernelsName, unavailable_reason
from draftwood.core.kernels.protocol import Kernels

log = logging.getLogger("draftwood")


def resolve_kernels(
    kernels: Kernels | KernelsName | None,
    device: torch.device,
    check: Callable[[Kernels], object],
) -> Kernels | None:
    """The kernels to use; None for the model's own attention.

    Args:
        kernels: An object or None, which is returned, or a name. `auto` is `triton` on a GPU where
            `check` accepts the kernels, else `torch`.
        device: The target's.
        check: Raises UnsupportedTarget if the kernels do not compute the target's attention.

    Raises:
        UnsupportedTarget: `triton`, and Triton kernels cannot run on the device.
        RequestError: There is no such name.
    """
    if kernels is None or not isinstance(kernels, str):
        return kernels
    if kernels not in get_args(KernelsName):
        raise RequestError(f"no kernels {kernels!r}; choices: {', '.join(get_args(KernelsName))}")
    automatic = kernels == "auto"
    if kernels == "torch" or (
        automatic and (device.type != "cuda" or unavailable_reason(device.type) is not None)
    ):
        return None
    require_triton(device, "runtime.kernels: triton", "use runtime.kernels: torch")
    from draftwood.core.kernels.triton.kernels import TritonKernels

    found = TritonKernels()
    if automatic:
        try:
            check(found)
        except UnsupportedTarget as error:
            log.warning("the model's own attention runs: %s", error)
            return None
    return found


def require_triton(device: torch.device, user: str, hint: str) -> None:
    """Raise UnsupportedTarget if Triton kernels cannot run on `device`.

    Args:
        device: Where they would run.
        user: What needs them, for the message.
        hint: What to use instead, for the message.
    """
    reason = unavailable_reason(device.type)
    if reason is None and device.type != "cuda":
        from draftwood.core.kernels.triton.kernels import COMPILED

        if COMPILED:
            reason = (
                "TRITON_INTERPRET was set after the kernels had been imported, which is too late; "
                "set it before Python starts"
            )
    if reason is not None:
        raise UnsupportedTarget(f"{user} cannot run here: {reason}; {hint}")
