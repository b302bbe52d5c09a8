"""What a round costs: a two-roof model of the forward, corrected by what rounds really took.

    T_v(s, c) = max(a_c F(s, c) / peak + b_c, a_m B(s, c) / bandwidth + b_m) * e^(r(s) + drift)

F and B are polynomials in the tokens s and the context c, so each roof is one, in seconds. Over
the roofs lie residuals r per size, because the roofs alone miss the best budget by a few percent,
and one drift for all sizes, which follows a machine that slows down as a whole.
"""

import math
from collections.abc import Sequence
from functools import cache, cached_property, lru_cache
from typing import Any, ClassVar, Protocol

import numpy as np
from attrs import evolve, field, frozen

from draftwood.core.values import Timings

KNOTS = (1, 2, 4, 8, 9, 12, 16, 17, 24, 25, 32, 33, 48, 64, 65, 96, 128, 129, 192, 256)
"""Sizes with a residual of their own; between them it is interpolated over log s. One token often
takes another kernel than two do: no size lies between those knots, so its price is its own. Matrix
units take rows in tiles, and the first row of a tile is dearer than those that fill it: hence the
pairs of neighbours, without which every budget between them would look alike."""

_LOG_KNOTS = np.log(KNOTS)

SPAN = 65
"""Sizes 1..SPAN are priced at once, or a multiple of it where more are asked for. In lists: between
forwards that take the whole cache, calls into an array library cost more than their work."""

STRIDE = 64
"""Contexts whose prices are taken to be alike: so few tokens more change no forward's time."""

CURVES = 64
"""Curves that are kept: one text goes through its contexts, and the next through the same."""

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

    corrected: whether what rounds take is learnt over it. Hashable.
    """

    def __hash__(self) -> int: ...

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
    # Forwards at the last context asked for: a round asks several times.
    _curves: dict[int, list[float]] = field(factory=dict, init=False, eq=False, repr=False)

    @cached_property
    def drift(self) -> float:
        """Log of how much slower than predicted the whole machine is."""
        return middle(tuple(ratio for ratio, _ in self.ratios), 0.0)

    def forward(self, tokens: Any, context: int) -> Any:
        """Seconds of a target's forward over `tokens` (a number or an array) nodes."""
        tokens = _padded(self.sizes, tokens)
        correction = np.interp(np.log(tokens), _LOG_KNOTS, self.residuals)
        return self.roof.seconds(tokens, context) * np.exp(correction + self.drift)

    def forwards(self, count: int, context: int) -> Sequence[float]:
        """Seconds of forwards over 1, 2, .. tokens, `count` of them or more."""
        curve = self._curves.get(context)
        if curve is None or len(curve) < count:
            span = _span(count)
            roof = _by_roof(self.roof, self.sizes, context - context % STRIDE, span)
            known, drift, exp = self.residuals, self.drift, math.exp
            curve = [
                seconds * exp(drift + known[knot] + share * (known[knot + 1] - known[knot]))
                for seconds, (knot, share) in zip(roof, _places(self.sizes, span), strict=True)
            ]
            self._curves.clear()
            self._curves[context] = curve
        return curve

    def overhead(self, context: int, passes: int = 1) -> float:
        """Seconds of a round that drafts with `passes` of the drafter's model, its forward
        excluded."""
        known = self.draft and self.grow and self.other
        unit = 0.0 if known else self.forwards(1, context)[0]
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
        forward = self.forwards(1, context)[0]
        return forward + middle(self.plain, middle(self.other, OTHER * forward))

    def floors(self, nodes: int, context: int, pace: float, gain: float) -> tuple[float, ...]:
        """For node 1..nodes the log path score below which neither it nor any after it can pay.

        pace: tokens per second that a round makes at least. gain: most that a score may grow by
        correction. This node and those after it add at most gain times its score each, and cost
        each at least the least mean step from the size without them to any larger one.
        """
        worth, log = pace / gain, math.log
        slopes = _least_slopes(self.forwards(nodes + 1, context), nodes)
        return tuple([log(max(worth * slope, 1e-300)) for slope in slopes])

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
            ratios = self._ratios(timings.verify, int(_padded(self.sizes, nodes + 1)), context)
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
        place = context - context % STRIDE
        roof = _by_roof(self.roof, self.sizes, place, _span(tokens))[tokens - 1]
        predicted = math.log(roof) + sum(
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


def _padded(sizes: tuple[int, ...], tokens: Any) -> Any:
    """What a forward over `tokens` (a number or an array) is run at."""
    if not sizes:
        return tokens
    known = np.minimum(np.searchsorted(sizes, tokens), len(sizes) - 1)
    return np.maximum(np.array(sizes)[known], tokens)


def _least_slopes(curve: Sequence[float], last: int) -> list[float]:
    """From each of the points 0..last - 1 the least slope to a later one, up to `last`.

    From the end: it is the slope to the next corner of the convex hull of all that follow.
    """
    hull, slopes = [last], [0.0] * last
    for at in range(last - 1, -1, -1):
        here, corner = curve[at], hull[-1]
        slope = (curve[corner] - here) / (corner - at)
        while len(hull) > 1:
            corner = hull[-2]
            further = (curve[corner] - here) / (corner - at)
            if further > slope:
                break
            slope = further
            hull.pop()
        hull.append(at)
        slopes[at] = slope
    return slopes


def _span(count: int) -> int:
    """As many sizes as are priced at once where `count` are asked for."""
    return SPAN * max(1, -(-count // SPAN))


@lru_cache(CURVES)
def _by_roof(roof: Forwards, sizes: tuple[int, ...], context: int, count: int) -> list[float]:
    """Seconds of forwards over 1, 2, .. count tokens, without any correction."""
    seconds = roof.seconds(_padded(sizes, np.arange(1.0, count + 1.0)), context)
    return [float(each) for each in seconds]


@lru_cache(CURVES)
def _places(sizes: tuple[int, ...], count: int) -> list[tuple[int, float]]:
    """Of forwards over 1, 2, .. count tokens, the knot below and the share of the one above."""
    return [_place(int(_padded(sizes, tokens))) for tokens in range(1, count + 1)]


def middle(window: Window, default: float) -> float:
    """The lower median, so that the first round's warm-up is forgotten by the second."""
    return sorted(window)[(len(window) - 1) // 2] if window else default


def _slide(window: Window, value: float) -> Window:
    return (*window[1 - WINDOW :], value)


@cache
def _place(tokens: int) -> tuple[int, float]:
    """The knot below a size, the last but one at most, and the share of the one above."""
    position = float(np.interp(math.log(tokens), _LOG_KNOTS, range(len(KNOTS))))
    below = min(int(position), len(KNOTS) - 2)
    return below, position - below


def _between(tokens: int) -> list[tuple[int, float]]:
    """The knots around a size, with its share of each."""
    below, share = _place(tokens)
    return [(knot, part) for knot, part in ((below, 1.0 - share), (below + 1, share)) if part > 0.0]
