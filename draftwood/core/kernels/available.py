"""Names of kernels, and where they can run. Imports neither torch nor triton: checks come first."""

import importlib.util
import os
from typing import Literal

KernelsName = Literal["auto", "triton", "torch"]
"""Values of `runtime.kernels`."""


def interpreting() -> bool:
    """Whether TRITON_INTERPRET lets Triton interpret kernels, on any device."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")


def unavailable_reason(device: str) -> str | None:
    """Why Triton kernels cannot run on this type of device; None if they can."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed (it comes with torch on Linux)"
    if device == "cuda" or interpreting():
        return None
    return (
        f"Triton kernels need a GPU and do not run on {device}, except in Triton's interpreter "
        "(TRITON_INTERPRET=1 before Python starts; slow, for tests)"
    )
