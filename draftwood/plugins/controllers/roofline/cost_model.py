"""The time of a round by its budget: forward model, corrections and stage times added up."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from attrs import evolve, field, frozen

from draftwood.core.values import Timings
from draftwood.plugins.controllers.roofline.corrections import Corrections, knot_below
from draftwood.plugins.controllers.roofline.roof import ForwardModel
from draftwood.plugins.controllers.roofline.stage_times import StageTimes

SPAN = 65
"""Sizes 1..SPAN, or a multiple of it, are computed at once, as lists: between forwards that evict
the whole cache, a call into an array library costs more than this arithmetic."""

STRIDE = 64
"""Context lengths that share one time: so few tokens more change no forward's time."""

CACHED_CURVES = 64
"""Curves that are kept: a request runs through its contexts, and the next through the same."""


@frozen
class CostModel:
    """What is known of the machine. Hashable; `learn` returns a new one.

    Attributes:
        forward_model: Seconds of target forwards.
        corrections: Learnt over it, if it is correctable.
        stages: Times of the rest of a round.
        sizes: Sizes that forwards are padded to; empty for none.
        times_disabled: How often in a row speculation was switched off without paying.
        source: Where it comes from: prior, probe or store.
    """

    forward_model: ForwardModel
    corrections: Corrections = field(factory=Corrections)
    stages: StageTimes = field(factory=StageTimes)
    sizes: tuple[int, ...] = ()
    times_disabled: int = 0
    source: str = "prior"
    # Forwards at the last context that was looked up: a round looks several times.
    _curves: dict[int, list[float]] = field(factory=dict, init=False, eq=False, repr=False)

    def forward(self, tokens: Any, context: int) -> Any:
        """Seconds of a target forward over `tokens` nodes (a number or an array)."""
        tokens = _padded(self.sizes, tokens)
        return self.forward_model.seconds(tokens, context) * self.corrections.factor(tokens)

    def forwards(self, count: int, context: int) -> Sequence[float]:
        """Seconds of forwards over 1, 2, .. tokens, at least `count` of them."""
        curve = self._curves.get(context)
        if curve is None or len(curve) < count:
            span = _span(count)
            predicted = _predicted(self.forward_model, self.sizes, context - context % STRIDE, span)
            known, drift, exp = self.corrections.residuals, self.corrections.drift, math.exp
            curve = [
                seconds * exp(drift + known[knot] + share * (known[knot + 1] - known[knot]))
                for seconds, (knot, share) in zip(predicted, _knots(self.sizes, span), strict=True)
            ]
            self._curves.clear()
            self._curves[context] = curve
        return curve

    def overhead(self, context: int, passes: int = 1) -> float:
        """Seconds of a round with a draft of `passes` forward passes of the drafter's model, the
        target's forward excluded."""
        forward = 0.0 if self.stages.measured else self.forwards(1, context)[0]
        return self.stages.overhead(passes, forward)

    def pass_price(self, context: int) -> float:
        """Seconds that one forward of the drafter's model adds to a round that drafts by lookup."""
        return max(0.0, self.overhead(context, 1) - self.overhead(context, 0))

    def plain_step(self, context: int) -> float:
        """Seconds of a round without a draft: one token, one forward."""
        forward = self.forwards(1, context)[0]
        return forward + self.stages.plain_overhead(forward)

    def floors(self, nodes: int, context: int, pace: float, gain: float) -> tuple[float, ...]:
        """Log path scores below which neither node 1..nodes nor any node after it can pay.

        A node and those after it add at most `gain` times its score each, and cost each at least
        the least mean step from the size without them to any larger size.

        Args:
            nodes: Number of floors.
            context: Committed tokens.
            pace: Least tokens per second of the round.
            gain: Largest factor by which acceptance may raise a path score.
        """
        pace_per_score, log = pace / gain, math.log
        slopes = _least_slopes(self.forwards(nodes + 1, context), nodes)
        return tuple([log(max(pace_per_score * slope, 1e-300)) for slope in slopes])

    def learn(
        self,
        timings: Timings,
        nodes: int,
        context: int,
        drafted: bool,
        caught_up: bool,
        passes: int = 1,
    ) -> "CostModel":
        """The model after a round.

        Args:
            timings: Of the round's stages.
            nodes: Draft nodes that were verified.
            context: Committed tokens before the round.
            drafted: Whether there was a draft.
            caught_up: Whether the round before had a draft, too. If not, `other` contains the time
                in which the drafter ingested skipped tokens, which is not the price of a round.
            passes: Forward passes of the drafter's model.
        """
        corrections = self.corrections
        if self.forward_model.correctable and timings.verify > 0.0:
            tokens = int(_padded(self.sizes, nodes + 1))
            start = context - context % STRIDE
            curve = _predicted(self.forward_model, self.sizes, start, _span(tokens))
            corrections = corrections.learn(tokens, timings.verify, curve[tokens - 1])
        stages = self.stages.learn(timings, drafted, caught_up, passes)
        return evolve(self, corrections=corrections, stages=stages)


def _padded(sizes: tuple[int, ...], tokens: Any) -> Any:
    """The size that a forward over `tokens` (a number or an array) runs at."""
    if not sizes:
        return tokens
    index = np.minimum(np.searchsorted(sizes, tokens), len(sizes) - 1)
    return np.maximum(np.array(sizes)[index], tokens)


def _span(count: int) -> int:
    """How many sizes are computed for a curve of `count`."""
    return SPAN * max(1, -(-count // SPAN))


@lru_cache(CACHED_CURVES)
def _predicted(
    model: ForwardModel, sizes: tuple[int, ...], context: int, count: int
) -> list[float]:
    """Seconds of forwards over 1, 2, .. count tokens, without corrections."""
    seconds = model.seconds(_padded(sizes, np.arange(1.0, count + 1.0)), context)
    return [float(each) for each in seconds]


@lru_cache(CACHED_CURVES)
def _knots(sizes: tuple[int, ...], count: int) -> list[tuple[int, float]]:
    """`knot_below` of forwards over 1, 2, .. count tokens."""
    return [knot_below(int(_padded(sizes, tokens))) for tokens in range(1, count + 1)]


def _least_slopes(curve: Sequence[float], last: int) -> list[float]:
    """From each of the points 0..last - 1 the least slope to a later one, up to `last`.

    It is the slope to the next corner of the convex hull of all later points, built from the end.
    """
    hull, slopes = [last], [0.0] * last
    for start in range(last - 1, -1, -1):
        seconds, corner = curve[start], hull[-1]
        slope = (curve[corner] - seconds) / (corner - start)
        while len(hull) > 1:
            corner = hull[-2]
            further = (curve[corner] - seconds) / (corner - start)
            if further > slope:
                break
            slope = further
            hull.pop()
        hull.append(start)
        slopes[start] = slope
    return slopes
