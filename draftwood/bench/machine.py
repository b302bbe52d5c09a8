"""The machine that numbers were measured on."""

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import draftwood


def machine() -> dict[str, Any]:
    """Hardware and versions, as JSON values. Imports torch."""
    import torch

    return {
        "platform": platform.platform(),
        "processor": _processor(),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "draftwood": draftwood.__version__,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
