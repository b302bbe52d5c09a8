"""Forward times interpolated between measured points, without a roofline model."""

from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np
from attrs import frozen

from draftwood.plugins.controllers.roofline.measuring import Probe


@frozen
class ContextTimes:
    """Measured times at one context length.

    Attributes:
        context: Committed tokens.
        sizes: Tokens per forward, increasing.
        seconds: Time of a forward of each size.
    """

    context: int
    sizes: tuple[int, ...]
    seconds: tuple[float, ...]

    def at(self, tokens: Any) -> Any:
        """Linear between sizes; beyond the largest, extrapolated with the last slope or zero."""
        inside = np.interp(tokens, self.sizes, self.seconds)
        if len(self.sizes) < 2:
            return inside
        slope = (self.seconds[-1] - self.seconds[-2]) / (self.sizes[-1] - self.sizes[-2])
        return inside + max(0.0, slope) * np.maximum(0.0, np.subtract(tokens, self.sizes[-1]))


@frozen
class ForwardTable:
    """A `ForwardModel` that interpolates measurements. Rounds do not correct it.

    Attributes:
        rows: One per context, increasing; linear between contexts, constant beyond them.
    """

    rows: tuple[ContextTimes, ...]
    correctable: ClassVar[bool] = False

    @classmethod
    def of(cls, probes: Iterable[Probe]) -> "ForwardTable":
        """The table of these measurements, at least one."""
        contexts: dict[int, dict[int, float]] = {}
        for probe in probes:
            contexts.setdefault(probe.context, {})[probe.tokens] = probe.seconds
        if not contexts:
            raise ValueError("a forward table needs at least one measurement")
        return cls(
            tuple(
                ContextTimes(context, *zip(*sorted(times.items()), strict=True))
                for context, times in sorted(contexts.items())
            )
        )

    def seconds(self, tokens: Any, context: int) -> Any:
        """Seconds of forwards over `tokens`, a number or an array; the result has its shape."""
        after = next((n for n, row in enumerate(self.rows) if row.context >= context), None)
        if after is None:
            return self.rows[-1].at(tokens)
        if after == 0:
            return self.rows[0].at(tokens)
        low, high = self.rows[after - 1], self.rows[after]
        share = (context - low.context) / (high.context - low.context)
        return (1.0 - share) * low.at(tokens) + share * high.at(tokens)
