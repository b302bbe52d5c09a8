"""What a round costs: a two-roof model of the forward, corrected by what rounds really took.

    T_v(s, c) = max(a_c F(s, c) / peak + b_c, a_m B(s, c) / bandwidth + b_m) * e^(r(s) + drift)

F and B are polynomials in the tokens s and the context c, so each roof is one, in seconds. Over
the roofs lie residuals r per size, because the roofs alone miss the best budget by a few percent,
and one drift for all sizes, which follows a machine that slows down as a whole.
"""

import math
from functools import cache, cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
from attrs import evolve, field, frozen

from draftwood.core.values import Timings

KNOTS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Sizes with a residual of their own; between them it is interpolated over log s. One token often
takes another kernel than two do: no size lies between those knots, so its price is its own."""

_LOG_KNOTS = np.log(KNOTS)

SPAN = 257
"""Sizes 1..SPAN that one look at the machine prices at once."""

_SIZES = np.arange(1.0, SPAN + 1.0)
_LOG_SIZES = np.log(_SIZES)

WINDOW = 9
"""Rounds that a time is the median of: one spike moves nothing, a slower machine is seen in 5."""

OTHERS = 3
"""Rounds of other sizes in that window without which a size is not judged."""

STEP, STEP_OF_ONE, CLIP, FARTHEST = 0.1, 0.5, 0.3, math.log(4.0)
"""Of a residual: share of an error that is learnt, that for one token, which is seldom seen while
speculation is on, largest error believed, largest residual."""

DRAFT, GROW, OTHER = 0.15, 0.02, 0.05
"""Before anything was measured, as shares of a plain forward."""

UNSEEN = 0.9
"""What the price of a level is held to be of what it was, for each round that grew none."""

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
        return np.maximum(value(self.compute, tokens, context), value(self.memory, tokens, context))


def value(p: Polynomial, tokens: Any, context: int) -> Any:
    """Of one roof, in seconds."""
    return p[0] + p[3] * context + tokens * (p[1] + p[4] * context + p[2] * tokens)


@frozen
class Prices:
    """What is known of the machine. Hashable; a round returns a new one.

    roof: seconds of forwards. residuals: log of measured over roof, per knot. ratios: recent (log
    of measured over predicted without drift, tokens), oldest first; the drift is their median.
    draft, grow, other: recent seconds of these stages in rounds that ran the drafter's model.
    level: of growing one more level, where each runs it again, over the draft of the same round: a
    ratio, as the levels that are not grown are not seen to get dearer. looked_up: of drafting and
    growing in rounds that drafted without it. plain: of everything but the forward in rounds that
    did not draft. sizes: those that forwards are padded to. given_up: how often in a row
    speculation was switched off without having paid. source: prior, probe or store.
    """

    roof: Forwards
    residuals: tuple[float, ...] = (0.0,) * len(KNOTS)
    ratios: tuple[tuple[float, int], ...] = ()
    draft: Window = ()
    grow: Window = ()
    level: Window = ()
    looked_up: Window = ()
    other: Window = ()
    plain: Window = ()
    sizes: tuple[int, ...] = ()
    given_up: int = 0
    source: str = "prior"
    # Forwards at the last context asked for: a round asks several times, and writes nothing there.
    _curves: dict[int, np.ndarray] = field(factory=dict, init=False, eq=False, repr=False)

    @cached_property
    def drift(self) -> float:
        """Log of how much slower than predicted the whole machine is."""
        return middle(tuple(ratio for ratio, _ in self.ratios), 0.0)

    def forward(self, tokens: Any, context: int) -> Any:
        """Seconds of a target's forward over `tokens` (a number or an array) nodes."""
        tokens = self.padded(tokens)
        correction = np.interp(np.log(tokens), _LOG_KNOTS, self.residuals)
        return self.roof.seconds(tokens, context) * np.exp(correction + self.drift)

    def forwards(self, count: int, context: int) -> np.ndarray:
        """(count,) seconds of forwards over 1, 2, .. count tokens."""
        if count > SPAN:
            whole: np.ndarray = self.forward(np.arange(1.0, count + 1.0), context)
            return whole
        curve = self._curves.get(context)
        if curve is None:
            run = self.padded(_SIZES) if self.sizes else _SIZES
            logs = np.log(run) if self.sizes else _LOG_SIZES
            correction = np.interp(logs, _LOG_KNOTS, self.residuals)
            curve = self.roof.seconds(run, context) * np.exp(correction + self.drift)
            self._curves.clear()
            self._curves[context] = curve
        return curve[:count]

    def padded(self, tokens: Any) -> Any:
        """What a forward over `tokens` (a number or an array) is run at."""
        if not self.sizes:
            return tokens
        place = np.searchsorted(self.sizes, tokens)
        known = np.minimum(place, len(self.sizes) - 1)
        return np.maximum(np.array(self.sizes)[known], tokens)

    def overhead(self, context: int, passes: int = 1) -> float:
        """Seconds of a round that drafts with `passes` of the drafter's model, its forward
        excluded."""
        known = self.draft and self.grow and self.other
        unit = 0.0 if known else float(self.forwards(1, context)[0])
        other = middle(self.other, OTHER * unit)
        if not passes:
            return other + middle(self.looked_up, GROW * unit)
        growing = middle(self.grow, GROW * unit) if passes == 1 else 0.0
        draft = middle(self.draft, DRAFT * unit)
        return other + draft + growing + (passes - 1) * middle(self.level, 1.0) * draft

    def pass_price(self, context: int) -> float:
        """Seconds that a round with a pass of the drafter's model takes longer than one that only
        looks its draft up."""
        return max(0.0, self.overhead(context, 1) - self.overhead(context, 0))

    def plain_step(self, context: int) -> float:
        """Seconds of a round that does not draft: one token, one forward."""
        forward = float(self.forwards(1, context)[0])
        return forward + middle(self.plain, middle(self.other, OTHER * forward))

    def floors(self, nodes: int, context: int, pace: float, gain: float) -> tuple[float, ...]:
        """For node 1..nodes the log path score below which neither it nor any after it can pay.

        pace: tokens per second that a round makes at least. gain: most that a score may grow by
        correction. A later node adds at most gain times the score of this one, and costs at least
        the least step between sizes from here on.
        """
        steps = np.diff(self.forwards(nodes + 1, context))
        least = np.minimum.accumulate(steps[::-1])[::-1]
        scores = np.log(np.maximum(pace / gain * least, 1e-300))
        return tuple(scores.tolist())

    def learn(
        self,
        timings: Timings,
        nodes: int,
        context: int,
        drafted: bool,
        caught_up: bool,
        passes: int = 1,
    ) -> "Prices":
        """Prices after a round that verified `nodes` draft nodes.

        caught_up: whether the drafter was asked in the round before too. If not, `other` holds the
        time it took to take in what it had missed, which is no price of a round. passes: how often
        its model ran.
        """
        changes: dict[str, Any] = {}
        if self.roof.corrected and timings.verify > 0.0:
            ratios = self._ratios(timings.verify, int(self.padded(nodes + 1)), context)
            changes.update(ratios=ratios, residuals=self._blamed(ratios))
        other = timings.judge + timings.commit + timings.other
        if not drafted:
            return evolve(self, plain=_slide(self.plain, other), **changes)
        if caught_up:
            changes["other"] = _slide(self.other, other)
        if passes == 0:
            looked_up = _slide(self.looked_up, timings.draft + timings.grow)
            return evolve(self, looked_up=looked_up, **changes)
        changes["draft"] = _slide(self.draft, timings.draft)
        if passes == 1:
            changes["grow"] = _slide(self.grow, timings.grow)
            if self.level:  # a price that keeps levels from being grown must not be for ever
                changes["level"] = _slide(self.level, UNSEEN * middle(self.level, 1.0))
        elif timings.draft > 0.0:
            ratio = timings.grow / (passes - 1) / timings.draft
            changes["level"] = _slide(self.level, ratio)
        return evolve(self, **changes)

    def _ratios(self, seconds: float, tokens: int, context: int) -> tuple[tuple[float, int], ...]:
        """The window of ratios after a forward of `tokens` that took `seconds`."""
        if tokens <= SPAN and context in self._curves:  # it was priced when it was chosen
            predicted = math.log(self._curves[context][tokens - 1]) - self.drift
        else:
            predicted = math.log(self.roof.seconds(tokens, context)) + sum(
                share * self.residuals[knot] for knot, share in _between(tokens)
            )
        return (*self.ratios[1 - WINDOW :], (math.log(seconds) - predicted, tokens))

    def _blamed(self, ratios: tuple[tuple[float, int], ...]) -> tuple[float, ...]:
        """The residuals after a round that left these ratios."""
        if len(ratios) < WINDOW:
            return self.residuals
        # What the machine's drift does not explain belongs to the size. The round in the middle
        # of the window is compared with those of other sizes around it: when a machine slows down,
        # their median steps exactly where the rounds do, and no size is blamed for it. Among its
        # like a round shows no more than noise, whose spikes would add up.
        ratio, size = ratios[WINDOW // 2]
        others = tuple(other for other, tokens in ratios if tokens != size)
        if len(others) < OTHERS:
            return self.residuals
        error = max(-CLIP, min(CLIP, ratio - middle(others, 0.0)))
        residuals = list(self.residuals)
        for knot, share in _between(size):
            step = STEP_OF_ONE if size == 1 else STEP * share
            learnt = residuals[knot] + step * error
            residuals[knot] = max(-FARTHEST, min(FARTHEST, learnt))
        return tuple(residuals)


def middle(window: Window, default: float) -> float:
    """The lower median, so that the first round's warm-up is forgotten by the second."""
    return sorted(window)[(len(window) - 1) // 2] if window else default


def _slide(window: Window, value: float) -> Window:
    return (*window[1 - WINDOW :], value)


@cache
def _between(tokens: int) -> list[tuple[int, float]]:
    """The knots around a size, with its share of each."""
    position = float(np.interp(math.log(tokens), _LOG_KNOTS, range(len(KNOTS))))
    low = int(position)
    share = position - low
    return [(low, 1.0 - share), (low + 1, share)] if share > 0.0 else [(low, 1.0)]
