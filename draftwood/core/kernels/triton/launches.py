"""Counts of kernel launches, so that a report shows what ran and not what was asked for."""

from collections import Counter


class Launches:
    """How often each kernel was launched, by name."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, kernel: str, count: int = 1) -> None:
        """Launches of `kernel`, counted where it is launched."""
        self._counts[kernel] += count

    def counts(self) -> dict[str, int]:
        """So far, by kernel, sorted by name."""
        return dict(sorted(self._counts.items()))


LAUNCHES = Launches()
"""Of this process. Reports take differences."""
