"""Where the kernels can run. Imports neither torch nor triton: `check` asks before either loads."""

import importlib.util
import os


def interpreting() -> bool:
    """Whether Triton was told to interpret kernels, on any device."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")


def missing(device: str) -> str | None:
    """Why kernels cannot run on this type of device, and what to do; None if they can."""
    if importlib.util.find_spec("triton") is None:
        return (
            "triton is not installed (it comes with torch on Linux); use verifier match, ratio or "
            "multi_round, which make the same decisions"
        )
    if device == "cuda" or interpreting():
        return None
    return (
        f"kernels run on a GPU, and the target is on {device}; use verifier match, ratio or "
        "multi_round, which make the same decisions, or set TRITON_INTERPRET=1 to run them in "
        "Triton's interpreter, which is for tests: it is slow"
    )
