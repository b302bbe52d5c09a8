"""Python in a process of its own, beside distributions that only it has installed."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest


def install_beside(site: Path, folder: Path, *distributions: str) -> Callable[..., str]:
    """Install `distributions` into `site` without a network.

    Args:
        site: An empty folder.
        folder: Where the processes run; names of distributions start there.
        distributions: Folders with a pyproject.toml.

    Returns:
        A function that runs Python with its arguments beside them, and returns what it printed.
    """
    pytest.importorskip("hatchling")
    paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    flags = ["--no-deps", "--no-build-isolation", "--no-index", "--target", str(site)]
    run("-m", "pip", "install", "--quiet", *flags, *distributions)
    return run
