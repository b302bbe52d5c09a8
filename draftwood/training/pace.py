"""How a long run spends its time: budgets, pauses, checkpoints, progress."""

import contextlib
import ctypes
import os
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console


def rate(progress: float, warm_up: float, cool_down: float) -> float:
    """The learning rate's factor at a fraction of the budget: warm-up, constant, linear to zero."""
    rise = min(1.0, (progress + 1e-3) / warm_up)
    return min(rise, max(0.0, (1 - progress) / cool_down))


class Clock:
    """Seconds spent on a run, over all its continuations; time asleep does not count."""

    def __init__(self, pause_file: Path | None = None, spent: float = 0.0) -> None:
        self.pause_file, self._spent = pause_file, spent
        self._since = time.monotonic()
        self._last: dict[str, float] = {}

    @property
    def spent(self) -> float:
        return self._spent + time.monotonic() - self._since

    def wait_while_paused(self) -> None:
        """Sleep while the pause file is there."""
        if self.pause_file is None or not self.pause_file.exists():
            return
        self._spent = self.spent
        Console(highlight=False).print(f"paused while {self.pause_file} exists", markup=False)
        while self.pause_file.exists():
            time.sleep(1)
        self._since = time.monotonic()

    def due(self, what: str, seconds: float) -> bool:
        """Whether `seconds` have been spent since this last said so for `what` (or the start)."""
        spent = self.spent
        if spent - self._last.setdefault(what, self._spent) < seconds:
            return False
        self._last[what] = spent
        return True


class Progress:
    """A bar and a status on one line; without a terminal, a new line each time."""

    def __init__(self, title: str, clock: Clock, every: float = 10.0) -> None:
        self.title, self.clock, self.every = title, clock, every
        self.console = Console(highlight=False, soft_wrap=True)

    def show(self, fraction: float, words: str) -> None:
        """fraction of the work done; does nothing if the last line is younger than `every`."""
        if not self.clock.due(f"line of {self.title}", self.every) and fraction < 1:
            return
        full = round(24 * min(fraction, 1.0))
        bar = "━" * full + "╌" * (24 - full)
        line = f"{self.title} {bar} {min(fraction, 1.0):4.0%}  {words}"
        end = "\r" if self.console.is_terminal and fraction < 1 else "\n"
        self.console.print(line, end=end, markup=False)

    def say(self, words: str) -> None:
        """Print a separate line."""
        self.console.print(f"{self.title}: {words}", markup=False)


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Atomically: a kill leaves the old checkpoint or the new one, never half of one."""
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    partial.replace(path)


def settle(threads: int | None, nice: int) -> None:
    """Set the threads and the niceness of this process, and keep freed memory."""
    if threads is not None:
        torch.set_num_threads(threads)
    if nice:
        os.nice(nice)
    keep_freed_memory()


def keep_freed_memory() -> None:
    """Tell glibc to reuse large blocks: mapping fresh pages at every step costs a third of it."""
    m_trim_threshold, m_mmap_max = -1, -4
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(m_mmap_max, 0)
        libc.mallopt(m_trim_threshold, -1)
