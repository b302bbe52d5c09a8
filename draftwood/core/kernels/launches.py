"""Counts of kernel launches, so that a report shows what ran."""

from collections import Counter
from collections.abc import Mapping


class Launches:
    """How often each kernel was launched, by name."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, kernel: str, count: int = 1) -> None:
        """Count launches of `kernel`."""
        self._counts[kernel] += count

    def add_all(self, launches: Mapping[str, int]) -> None:
        """Count launches by name: those of a replayed graph."""
        self._counts.update(launches)

    def counts(self) -> Counter[str]:
        """The launches so far, sorted by name."""
        return Counter(dict(sorted(self._counts.items())))


LAUNCHES = Launches()
"""The launches of this process. Every kernel is counted here where it is launched; reports take
differences."""
