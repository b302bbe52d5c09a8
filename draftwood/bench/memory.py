"""Peak memory of a request."""

from pathlib import Path

_CLEAR, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


def reset_peak_memory() -> None:
    """Start measuring `peak_memory` again, where the system can."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        return
    try:
        _CLEAR.write_text("5", encoding="ascii")  # Linux: resets the high-water mark, no more
    except OSError:
        return


def peak_memory() -> int | None:
    """Most bytes since `reset_peak_memory`; None where the system does not tell.

    On an accelerator these are its tensors, else the whole process, models included.
    """
    import torch

    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    try:
        lines = _STATUS.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")), None)
