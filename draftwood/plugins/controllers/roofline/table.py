"""Forward times as they were measured, without a model of them."""

from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np
from attrs import frozen

from draftwood.plugins.controllers.roofline.probing import Probe


@frozen
class Row:
    """Times at one context: seconds[i] of a forward over sizes[i] tokens, sizes increasing."""

    context: int
    sizes: tuple[int, ...]
    seconds: tuple[float, ...]

    def at(self, tokens: Any) -> Any:
        """Straight between sizes, and on beyond the largest as between the last two."""
        inside = np.interp(tokens, self.sizes, self.seconds)
        if len(self.sizes) < 2:
            return inside
        slope = (self.seconds[-1] - self.seconds[-2]) / (self.sizes[-1] - self.sizes[-2])
        return inside + max(0.0, slope) * np.maximum(0.0, np.subtract(tokens, self.sizes[-1]))


@frozen
class Table:
    """Seconds of a forward, read between measured points. Stands where `Roof` stands.

    rows: one context each, increasing; between them it is straight, beyond them constant.
    """

    rows: tuple[Row, ...]
    corrected: ClassVar[bool] = False

    @classmethod
    def of(cls, probes: Iterable[Probe]) -> "Table":
        """The table of these measurements. At least one."""
        contexts: dict[int, dict[int, float]] = {}
        for probe in probes:
            contexts.setdefault(probe.context, {})[probe.tokens] = probe.seconds
        rows = [
            Row(context, tuple(sorted(times)), tuple(times[size] for size in sorted(times)))
            for context, times in sorted(contexts.items())
        ]
        if not rows:
            raise ValueError("a table has at least one measurement")
        return cls(tuple(rows))

    def seconds(self, tokens: Any, context: int) -> Any:
        """tokens: a number or an array of them; the result has its shape."""
        after = next((n for n, row in enumerate(self.rows) if row.context >= context), None)
        if after is None:
            return self.rows[-1].at(tokens)
        if after == 0:
            return self.rows[0].at(tokens)
        low, high = self.rows[after - 1], self.rows[after]
        share = (context - low.context) / (high.context - low.context)
        return (1.0 - share) * low.at(tokens) + share * high.at(tokens)
