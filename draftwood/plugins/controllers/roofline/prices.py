"""What a round costs: a two-roof model of the forward, corrected by what rounds really took.

    T_v(s, c) = max(a_c F(s, c) / peak + b_c, a_m B(s, c) / bandwidth + b_m) * e^(r(s) + drift)

F and B are polynomials in the tokens s and the context c, so each roof is one, in seconds. Over
the roofs lie residuals r per size, because the roofs alone miss the best budget by a few percent,
and one drift for all sizes, which follows a machine that slows down as a whole.
"""

import math
from typing import Any, ClassVar, Protocol

import numpy as np
from attrs import evolve, frozen

from draftwood.core.values import Timings

KNOTS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Sizes with a residual of their own; between them it is interpolated over log s. One token often
takes another kernel than two do: no size lies between those knots, so its price is its own."""

_LOG_KNOTS = np.log(KNOTS)

WINDOW = 9
"""Rounds that a time is the median of: one spike moves nothing, a slower machine is seen in 5."""

STEP, STEP_OF_ONE, CLIP, FARTHEST = 0.1, 0.5, 0.3, math.log(4.0)
"""Of a residual: share of an error that is learnt, that for one token, which is seldom seen while
speculation is on, largest error believed, largest residual."""

DRAFT, GROW, OTHER = 0.15, 0.02, 0.05
"""Before anything was measured, as shares of a plain forward."""

Polynomial = tuple[float, float, float, float, float]
"""Coefficients of 1, s, s^2, c and s c."""

Window = tuple[float, ...]


class Forwards(Protocol):
    """Seconds of a forward before any correction.

    corrected: whether what rounds take is learnt over it.
    """

    @property
    def corrected(self) -> bool: ...

    def seconds(self, tokens: Any, context: int) -> Any:
        """tokens: a number or an array of them; the result has its shape."""
        ...


@frozen
class Roof:
    """Seconds of a forward as the larger of two polynomials in tokens and context."""

    compute: Polynomial
    memory: Polynomial
    corrected: ClassVar[bool] = True

    def seconds(self, tokens: Any, context: int) -> Any:
        """tokens: a number or an array of them; the result has its shape."""
        return np.maximum(
            _value(self.compute, tokens, context), _value(self.memory, tokens, context)
        )


def _value(p: Polynomial, tokens: Any, context: int) -> Any:
    return p[0] + p[3] * context + tokens * (p[1] + p[4] * context + p[2] * tokens)


@frozen
class Prices:
    """What is known of the machine. Hashable; a round returns a new one.

    roof: seconds of forwards. residuals: log of measured over roof, per knot. ratios: recent (log
    of measured over predicted without drift, tokens), oldest first; the drift is their median.
    draft, grow, other: recent seconds of these stages in rounds that drafted. plain: of everything
    but the forward in rounds that did not. source: prior, probe or store.
    """

    roof: Forwards
    residuals: tuple[float, ...] = (0.0,) * len(KNOTS)
    ratios: tuple[tuple[float, int], ...] = ()
    draft: Window = ()
    grow: Window = ()
    other: Window = ()
    plain: Window = ()
    source: str = "prior"

    @property
    def drift(self) -> float:
        """Log of how much slower than predicted the whole machine is."""
        return middle(tuple(ratio for ratio, _ in self.ratios), 0.0)

    def forward(self, tokens: Any, context: int) -> Any:
        """Seconds of a target's forward over `tokens` (a number or an array) nodes."""
        correction = np.interp(np.log(tokens), _LOG_KNOTS, self.residuals)
        return self.roof.seconds(tokens, context) * np.exp(correction + self.drift)

    def overhead(self, context: int) -> float:
        """Seconds of a round that drafts, its forward excluded."""
        unit = 0.0 if self.draft and self.grow and self.other else self.forward(1, context)
        return (
            middle(self.draft, DRAFT * unit)
            + middle(self.grow, GROW * unit)
            + middle(self.other, OTHER * unit)
        )

    def grown(self, passes: int, context: int) -> float:
        """Seconds of a round that runs the drafter `passes` times, the forward excluded; the
        stage that drafts is one pass, and what grows a tree beside its passes is next to none."""
        unit = 0.0 if self.draft and self.other else float(self.forward(1, context))
        return passes * middle(self.draft, DRAFT * unit) + middle(self.other, OTHER * unit)

    def plain_step(self, context: int) -> float:
        """Seconds of a round that does not draft: one token, one forward."""
        forward = float(self.forward(1, context))
        return forward + middle(self.plain, middle(self.other, OTHER * forward))

    def learn(
        self, timings: Timings, nodes: int, context: int, drafted: bool, caught_up: bool
    ) -> "Prices":
        """Prices after a round that verified `nodes` draft nodes.

        caught_up: whether the drafter ran in the round before too. If not, `other` holds the time
        it took to take in what it had missed, which is no price of a round.
        """
        after = self
        if self.roof.corrected:
            after = self._learn_forward(timings.verify, nodes + 1, context)
        other = timings.judge + timings.commit + timings.other
        if not drafted:
            return evolve(after, plain=_slide(after.plain, other))
        return evolve(
            after,
            draft=_slide(after.draft, timings.draft),
            grow=_slide(after.grow, timings.grow),
            other=_slide(after.other, other) if caught_up else after.other,
        )

    def _learn_forward(self, seconds: float, tokens: int, context: int) -> "Prices":
        if not seconds > 0.0:
            return self
        corrected = float(np.interp(math.log(tokens), _LOG_KNOTS, self.residuals))
        predicted = float(self.roof.seconds(tokens, context)) * math.exp(corrected)
        ratios = (*self.ratios[1 - WINDOW :], (math.log(seconds / predicted), tokens))
        after = evolve(self, ratios=ratios)
        if len(ratios) < WINDOW:
            return after
        # What the machine's drift does not explain belongs to the size. The round in the middle
        # of the window is compared with the median around it: when a machine slows down, that
        # median steps exactly where the rounds do, and no size is blamed for it.
        ratio, size = ratios[WINDOW // 2]
        error = max(-CLIP, min(CLIP, ratio - after.drift))
        residuals = list(self.residuals)
        for knot, share in _between(size):
            step = STEP_OF_ONE if size == 1 else STEP * share
            learnt = residuals[knot] + step * error
            residuals[knot] = max(-FARTHEST, min(FARTHEST, learnt))
        return evolve(after, residuals=tuple(residuals))


def middle(window: Window, default: float) -> float:
    """The lower median, so that the first round's warm-up is forgotten by the second."""
    return sorted(window)[(len(window) - 1) // 2] if window else default


def _slide(window: Window, value: float) -> Window:
    return (*window[1 - WINDOW :], value)


def _between(tokens: int) -> list[tuple[int, float]]:
    """The knots around a size, with its share of each."""
    position = float(np.interp(math.log(tokens), _LOG_KNOTS, range(len(KNOTS))))
    low = int(position)
    share = position - low
    return [(low, 1.0 - share), (low + 1, share)] if share > 0.0 else [(low, 1.0)]
