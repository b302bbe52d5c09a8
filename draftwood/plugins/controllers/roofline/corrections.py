"""Corrections of predicted forward times, learnt from the times of rounds.

Over the roofs lie a residual r(s) per size, because the roofs alone miss the best budget by a few
percent, and one drift for all sizes, which follows a machine that slows down as a whole:
measured time = predicted time * e^(r(s) + drift).
"""

import math
from functools import cache, cached_property
from typing import Any

import numpy as np
from attrs import frozen

from draftwood.plugins.controllers.roofline.stage_times import WINDOW, lower_median

KNOTS = (1, 2, 4, 8, 9, 12, 16, 17, 24, 25, 32, 33, 48, 64, 65, 96, 128, 129, 192, 256)
"""Sizes with their own residual; it is interpolated over log s between them. One token often runs
another kernel than two: no size lies between those knots. Matrix units process rows in tiles, and
the first row of a tile costs more than those that fill it: hence pairs of neighbours, without which
all budgets between them would look alike."""

_LOG_KNOTS = np.log(KNOTS)

MIN_OTHER_SIZES = 3
"""Rounds of other sizes that the window needs before a size is corrected."""

STEP, STEP_OF_ONE, MAX_ERROR, MAX_RESIDUAL = 0.1, 0.5, 0.3, math.log(4.0)
"""Share of an error that a residual learns, the same for one token (rare while speculation is on),
the largest error of one round and the largest residual."""


@frozen
class Corrections:
    """Residuals per size and the drift of all sizes. Hashable.

    Attributes:
        residuals: Log of measured over predicted time at each knot.
        ratios: Recent (log of measured over predicted time without drift, tokens), oldest first.
    """

    residuals: tuple[float, ...] = (0.0,) * len(KNOTS)
    ratios: tuple[tuple[float, int], ...] = ()

    @cached_property
    def drift(self) -> float:
        """Log of how much slower than predicted the whole machine is."""
        return lower_median(tuple(ratio for ratio, _ in self.ratios), 0.0)

    def factor(self, tokens: Any) -> Any:
        """Measured over predicted time of forwards over `tokens`, a number or an array."""
        return np.exp(np.interp(np.log(tokens), _LOG_KNOTS, self.residuals) + self.drift)

    def learn(self, tokens: int, seconds: float, predicted: float) -> "Corrections":
        """Corrections after a forward that took `seconds`.

        Args:
            tokens: Size that the forward ran at.
            seconds: Measured time.
            predicted: Time without any correction.
        """
        expected = math.log(predicted) + sum(
            share * self.residuals[knot] for knot, share in _surrounding_knots(tokens)
        )
        ratios = (*self.ratios[1 - WINDOW :], (math.log(seconds) - expected, tokens))
        return Corrections(self._corrected(ratios), ratios)

    def _corrected(self, ratios: tuple[tuple[float, int], ...]) -> tuple[float, ...]:
        if len(ratios) < WINDOW:
            return self.residuals
        # What drift does not explain belongs to the size. The round in the middle of the window is
        # compared with rounds of other sizes around it: when the machine slows down, their median
        # steps where the rounds do, and no size is corrected for it. Rounds of one size show only
        # noise, whose spikes would add up.
        ratio, size = ratios[WINDOW // 2]
        others = tuple(other for other, tokens in ratios if tokens != size)
        if len(others) < MIN_OTHER_SIZES:
            return self.residuals
        error = max(-MAX_ERROR, min(MAX_ERROR, ratio - lower_median(others, 0.0)))
        residuals = list(self.residuals)
        for knot, share in _surrounding_knots(size):
            learnt = residuals[knot] + (STEP_OF_ONE if size == 1 else STEP * share) * error
            residuals[knot] = max(-MAX_RESIDUAL, min(MAX_RESIDUAL, learnt))
        return tuple(residuals)


@cache
def knot_below(tokens: int) -> tuple[int, float]:
    """The knot below a size, the last but one at most, and the weight of the knot above."""
    position = float(np.interp(math.log(tokens), _LOG_KNOTS, range(len(KNOTS))))
    below = min(int(position), len(KNOTS) - 2)
    return below, position - below


def _surrounding_knots(tokens: int) -> list[tuple[int, float]]:
    """The knots around a size with their weights, zero weights left out."""
    below, above = knot_below(tokens)
    return [(knot, w) for knot, w in ((below, 1.0 - above), (below + 1, above)) if w > 0.0]
