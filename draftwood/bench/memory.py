"""The most memory that something took."""

from pathlib import Path

_CLEAR, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


def forget_peak() -> None:
    """Start measuring `peak` anew, where the system can."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        return
    try:
        _CLEAR.write_text("5", encoding="ascii")  # Linux: resets the high-water mark, no more
    except OSError:
        return


def peak() -> int | None:
    """Most bytes since `forget_peak`: of tensors on the accelerator if there is one, else of the
    whole process, models included. None where the system does not say."""
    import torch

    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    try:
        lines = _STATUS.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")), None)
