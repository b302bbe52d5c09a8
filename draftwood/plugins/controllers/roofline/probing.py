"""Where prices come from: counted work, a few timed forwards, and a fit of two roofs to them.

Williams et al. 2009 for the roofs; BASTION (arXiv 2605.29727) for using them to set a budget.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from attrs import frozen

from draftwood.core.errors import DraftwoodError
from draftwood.core.interfaces.controller import CostProbe
from draftwood.plugins.controllers.roofline.prices import KNOTS, Polynomial, Prices, Roof

NOMINAL = (1e12, 5e10)
"""FLOP/s and bytes/s of no machine in particular: 20 operations a byte, between a CPU's balance
and a GPU's, so that 40 tokens in float32 take about twice the time of one."""

SIZES = (1, 2, 4, 8, 9, 16, 17, 32, 33, 64, 65, 128)
CONTEXTS = (64, 1024)
REPEATS = 5
ENOUGH = 5
"""Distinct sizes from which the two roofs are fitted; with fewer the prior is only scaled."""


@frozen
class Probe:
    """One timed forward: seconds for `tokens` nodes on `context` tokens."""

    tokens: int
    context: int
    seconds: float


def nominal(costs: CostProbe) -> Prices:
    """Prices from counted work at fixed rates: the same on every machine."""
    return Prices(_prior(costs, NOMINAL))


def probed(
    costs: CostProbe, clock: Callable[[], float], limit: float
) -> tuple[Prices, list[Probe]]:
    """Prices measured in at most `limit` seconds, read from `clock`, and the measurements.

    Device rates and then forwards are timed for as long as the limit allows, cheapest first; what
    was not measured comes from counted work at the device's rates.
    """
    end = clock() + limit
    peaks = costs.peaks()
    probes = monotone(measure(costs, clock, end))
    if len({probe.tokens for probe in probes}) >= ENOUGH:
        roof = fit(costs, peaks, probes)
    else:
        roof = _scaled(_prior(costs, peaks), probes)
    prices = Prices(roof, residuals(roof, probes), source="probe" if probes else "prior")
    return prices, probes


def measure(costs: CostProbe, clock: Callable[[], float], end: float) -> list[Probe]:
    """The fastest of up to REPEATS timings of each size, as many as end before `end`.

    A forward cannot be stopped once it runs, so one starts only if it should end in time: it may
    take twice as long as the one before it, of half its size or more, and its warm-up as much
    again. Sizes or contexts that the target cannot hold are left out.
    """
    sizes = [size for size in costs.sizes if size <= SIZES[-1]] or SIZES
    plan = [(size, CONTEXTS[0]) for size in sizes]
    plan += [(size, CONTEXTS[1]) for size in sizes[::3]]
    best: dict[tuple[int, int], float] = {}
    took, last = 0.0, dict.fromkeys(plan, 0.0)
    for repeat in range(REPEATS):
        for point in plan:
            expected = last[point] if repeat else 2.0 * took
            start = clock()
            if start + expected > end:
                return [Probe(*at, seconds) for at, seconds in best.items()]
            try:
                seconds = costs.seconds(*point)
            except DraftwoodError:
                plan = [kept for kept in plan if kept != point]
                continue
            took = last[point] = clock() - start
            if seconds > 0.0:
                best[point] = min(seconds, best.get(point, math.inf))
    return [Probe(*at, seconds) for at, seconds in best.items()]


def monotone(probes: Sequence[Probe]) -> list[Probe]:
    """No forward takes longer than a larger one: what does was disturbed, noise only adds."""
    return [
        Probe(
            probe.tokens,
            probe.context,
            min(
                other.seconds
                for other in probes
                if other.context == probe.context and other.tokens >= probe.tokens
            ),
        )
        for probe in probes
    ]


def fit(costs: CostProbe, peaks: tuple[float, float], probes: Sequence[Probe]) -> Roof:
    """The two roofs with the least squared relative error, a and b non-negative.

    Which roof a probe touches is not known: probes are ordered by operations per byte, and every
    way to give the first few to memory and the rest to compute is tried.
    """
    from scipy.optimize import nnls  # 0.2 s to import, and needed once a machine

    took = np.array([probe.seconds for probe in probes])
    flops = np.array([costs.flops(probe.tokens, probe.context) for probe in probes]) / peaks[0]
    moved = np.array([costs.bytes(probe.tokens, probe.context) for probe in probes]) / peaks[1]
    order = np.argsort(flops / moved, kind="stable")

    def line(work: np.ndarray, at: np.ndarray) -> tuple[float, float]:
        if not len(at):
            return 0.0, 0.0
        rows = np.stack([work[at], np.ones(len(at))], 1) / took[at, None]
        a, b = nnls(rows, np.ones(len(at)))[0]
        return float(a), float(b)

    best, least = ((0.0, 0.0), (0.0, 0.0)), math.inf
    for split in range(len(probes) + 1):
        compute, memory = line(flops, order[split:]), line(moved, order[:split])
        roof = np.maximum(compute[0] * flops + compute[1], memory[0] * moved + memory[1])
        error = float(np.square(roof / took - 1.0).sum())
        if error < least:
            best, least = (compute, memory), error
    (a_c, b_c), (a_m, b_m) = best
    return Roof(
        _line_of(_polynomial(costs.flops), a_c / peaks[0], b_c),
        _line_of(_polynomial(costs.bytes), a_m / peaks[1], b_m),
    )


def _prior(costs: CostProbe, peaks: tuple[float, float]) -> Roof:
    """Both roofs as if the device's rates were reached."""
    return Roof(
        _line_of(_polynomial(costs.flops), 1.0 / peaks[0], 0.0),
        _line_of(_polynomial(costs.bytes), 1.0 / peaks[1], 0.0),
    )


def _scaled(roof: Roof, probes: Sequence[Probe]) -> Roof:
    """The roofs times the median of measured over predicted, or as they are without probes."""
    if not probes:
        return roof
    ratios = [p.seconds / float(roof.seconds(p.tokens, p.context)) for p in probes]
    ratio = float(np.median(ratios))
    return Roof(_line_of(roof.compute, ratio, 0.0), _line_of(roof.memory, ratio, 0.0))


def _polynomial(count: Callable[[int, int], float]) -> Polynomial:
    """The count as a polynomial in tokens and context, by relative least squares; exact unless
    sliding windows bend it."""
    points = [(s, c) for s in (1, 2, 8, 32, 128) for c in (64, 512, 2048)]
    counts = np.array([max(count(s, c), 1.0) for s, c in points])
    rows = np.array([(1.0, s, s * s, c, s * c) for s, c in points])
    scale = np.abs(rows).max(0)
    solution = np.linalg.lstsq(rows / scale / counts[:, None], np.ones(len(points)), rcond=None)[0]
    one, s, ss, c, sc = (solution / scale).tolist()
    return one, s, ss, c, sc


def _line_of(p: Polynomial, a: float, b: float) -> Polynomial:
    """a p + b."""
    return a * p[0] + b, a * p[1], a * p[2], a * p[3], a * p[4]


def residuals(roof: Roof, probes: Sequence[Probe]) -> tuple[float, ...]:
    """Log of measured over roof at every knot, interpolated over log s between probed sizes.

    What the roof misses at a context is taken from all sizes alike: those that were probed at
    several contexts would else stand out from their neighbours.
    """
    if not probes:
        return (0.0,) * len(KNOTS)
    missed: dict[int, dict[int, float]] = {}
    for probe in probes:
        predicted = float(roof.seconds(probe.tokens, probe.context))
        missed.setdefault(probe.context, {})[probe.tokens] = math.log(probe.seconds / predicted)
    first = next(iter(missed.values()))
    shifts = {context: _shift(first, at) for context, at in missed.items()}
    middle = sum(shifts.values()) / len(shifts)
    by_size: dict[int, list[float]] = {}
    for context, at in missed.items():
        for size, ratio in at.items():
            by_size.setdefault(size, []).append(ratio - shifts[context] + middle)
    sizes = sorted(by_size)
    means = [sum(by_size[size]) / len(by_size[size]) for size in sizes]
    return tuple(np.interp(np.log(KNOTS), np.log(sizes), means).tolist())


def _shift(first: dict[int, float], other: dict[int, float]) -> float:
    """How much more is missed in one context than in another, in the median of sizes in both."""
    both = [other[size] - first[size] for size in first.keys() & other.keys()]
    return float(np.median(both)) if both else 0.0
