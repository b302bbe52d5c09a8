"""Fits two roofs and a residual per size to timed forwards.

Williams et al. 2009 for the roofs; BASTION (arXiv 2605.29727) for setting a budget with them.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from draftwood.core.interfaces.controller import CostProbe
from draftwood.plugins.controllers.roofline.corrections import KNOTS
from draftwood.plugins.controllers.roofline.measuring import Probe
from draftwood.plugins.controllers.roofline.roof import Polynomial, Roof


def prior_roof(costs: CostProbe, peaks: tuple[float, float]) -> Roof:
    """Both roofs as if the device reached its peak (FLOP/s, bytes/s)."""
    return Roof(
        _affine(_polynomial(costs.flops), 1.0 / peaks[0], 0.0),
        _affine(_polynomial(costs.bytes), 1.0 / peaks[1], 0.0),
    )


def scale_roof(roof: Roof, probes: Sequence[Probe]) -> Roof:
    """The roofs times the median ratio of measured to predicted time; unchanged without probes."""
    if not probes:
        return roof
    ratios = [p.seconds / float(roof.seconds(p.tokens, p.context)) for p in probes]
    ratio = float(np.median(ratios))
    return Roof(_affine(roof.compute, ratio, 0.0), _affine(roof.memory, ratio, 0.0))


def fit_roof(costs: CostProbe, peaks: tuple[float, float], probes: Sequence[Probe]) -> Roof:
    """The two roofs with the least squared relative error, a and b non-negative.

    Which bound limits a probe is unknown: probes are sorted by operations per byte, and every
    split into memory-bound (first) and compute-bound (last) ones is tried.
    """
    from scipy.optimize import nnls  # 0.2 s to import, and needed once a machine

    measured = np.array([probe.seconds for probe in probes])
    flops = np.array([costs.flops(probe.tokens, probe.context) for probe in probes]) / peaks[0]
    moved = np.array([costs.bytes(probe.tokens, probe.context) for probe in probes]) / peaks[1]
    order = np.argsort(flops / moved, kind="stable")

    def line(work: np.ndarray, at: np.ndarray) -> tuple[float, float]:
        if not len(at):
            return 0.0, 0.0
        rows = np.stack([work[at], np.ones(len(at))], 1) / measured[at, None]
        a, b = nnls(rows, np.ones(len(at)))[0]
        return float(a), float(b)

    best, least = ((0.0, 0.0), (0.0, 0.0)), math.inf
    for split in range(len(probes) + 1):
        compute, memory = line(flops, order[split:]), line(moved, order[:split])
        roof = np.maximum(compute[0] * flops + compute[1], memory[0] * moved + memory[1])
        error = float(np.square(roof / measured - 1.0).sum())
        if error < least:
            best, least = (compute, memory), error
    (a_c, b_c), (a_m, b_m) = best
    return Roof(
        _affine(_polynomial(costs.flops), a_c / peaks[0], b_c),
        _affine(_polynomial(costs.bytes), a_m / peaks[1], b_m),
    )


def fit_residuals(roof: Roof, probes: Sequence[Probe]) -> tuple[float, ...]:
    """Log of measured over predicted time at every knot, interpolated over log s between sizes.

    The mean error of a context is spread over all sizes: sizes probed at several contexts would
    otherwise stand out from their neighbours.
    """
    if not probes:
        return (0.0,) * len(KNOTS)
    contexts: dict[int, dict[int, float]] = {}
    for probe in probes:
        predicted = float(roof.seconds(probe.tokens, probe.context))
        contexts.setdefault(probe.context, {})[probe.tokens] = math.log(probe.seconds / predicted)
    first = next(iter(contexts.values()))
    shifts = {context: _shift(first, errors) for context, errors in contexts.items()}
    mean_shift = sum(shifts.values()) / len(shifts)
    by_size: dict[int, list[float]] = {}
    for context, errors in contexts.items():
        for size, error in errors.items():
            by_size.setdefault(size, []).append(error - shifts[context] + mean_shift)
    sizes = sorted(by_size)
    means = [sum(by_size[size]) / len(by_size[size]) for size in sizes]
    return tuple(np.interp(np.log(KNOTS), np.log(sizes), means).tolist())


def _shift(first: dict[int, float], other: dict[int, float]) -> float:
    """Median difference between two contexts' errors, over the sizes probed at both."""
    both = [other[size] - first[size] for size in first.keys() & other.keys()]
    return float(np.median(both)) if both else 0.0


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


def _affine(p: Polynomial, a: float, b: float) -> Polynomial:
    """a p + b."""
    return a * p[0] + b, a * p[1], a * p[2], a * p[3], a * p[4]
