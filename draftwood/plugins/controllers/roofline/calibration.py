"""A full measurement of a machine and a target: more than the first run's coarse probe, and with
points held out that say how well the prices predict.

`calibrate` measures, `Calibration` holds what came of it.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import frozen

from draftwood.core.errors import DraftwoodError
from draftwood.core.interfaces.controller import CostProbe
from draftwood.plugins.controllers.roofline.prices import Prices, Roof
from draftwood.plugins.controllers.roofline.probing import Probe, fit, monotone, residuals

FITTED = tuple(
    (s, c) for c in (64, 512, 2048) for s in (1, 2, 4, 8, 9, 16, 17, 32, 33, 64, 65, 128, 256)
)
HELD_OUT = (
    *((s, c) for c in (256, 1024) for s in (1, 3, 6, 12, 24, 48, 96, 192)),
    *((s, 2048) for s in (3, 12, 48, 192)),
)
"""(tokens, context) that prices are fitted to, and others that they are tried on."""


@frozen(eq=False)
class CountedCosts:
    """A `CostProbe` with another count of operations: flops is called with (tokens, context)."""

    costs: CostProbe
    count: Callable[[int, int], float]

    @property
    def identity(self) -> Mapping[str, str]:
        return self.costs.identity

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.costs.sizes

    def seconds(self, tokens: int, context: int) -> float:
        return self.costs.seconds(tokens, context)

    def flops(self, tokens: int, context: int) -> float:
        return self.count(tokens, context)

    def bytes(self, tokens: int, context: int) -> float:
        return self.costs.bytes(tokens, context)

    def peaks(self) -> tuple[float, float]:
        return self.costs.peaks()


@frozen(eq=False)
class Calibration:
    """What was measured. peaks: (FLOP/s, bytes/s). prices: fitted to `fitted` alone."""

    peaks: tuple[float, float]
    prices: Prices
    fitted: tuple[Probe, ...]
    held_out: tuple[Probe, ...]

    @property
    def roof(self) -> Roof:
        assert isinstance(self.prices.roof, Roof)
        return self.prices.roof

    def predicted(self, probe: Probe) -> float:
        return float(self.prices.forward(probe.tokens, probe.context))

    def error(self, probe: Probe) -> float:
        """(predicted - measured) / measured."""
        return self.predicted(probe) / probe.seconds - 1.0

    def quality(self) -> dict[str, float | None]:
        """Median and largest absolute error on held-out points; roof_median: that of the two
        roofs alone, without what was learnt per size. None without such points."""
        if not self.held_out:
            return {"median": None, "largest": None, "roof_median": None}
        errors = [abs(self.error(probe)) for probe in self.held_out]
        roof = [abs(self._by_roof(probe) / probe.seconds - 1.0) for probe in self.held_out]
        return {
            "median": float(np.median(errors)),
            "largest": max(errors),
            "roof_median": float(np.median(roof)),
        }

    def _by_roof(self, probe: Probe) -> float:
        return float(self.roof.seconds(probe.tokens, probe.context))

    def as_dict(self) -> dict[str, Any]:
        """JSON values: peaks, both roofs' coefficients, quality, and every point."""
        return {
            "peak_flops": self.peaks[0],
            "peak_bytes": self.peaks[1],
            "compute": list(self.roof.compute),
            "memory": list(self.roof.memory),
            "quality": self.quality(),
            "points": [
                {
                    "tokens": probe.tokens,
                    "context": probe.context,
                    "seconds": probe.seconds,
                    "predicted": self.predicted(probe),
                    "held_out": probe in self.held_out,
                }
                for probe in (*self.fitted, *self.held_out)
            ],
        }


def calibrate(
    costs: CostProbe,
    repeats: int = 5,
    progress: Callable[[int, int], object] = lambda done, of: None,
) -> Calibration:
    """Time every point `repeats` times; the fastest counts.

    Each time all points are gone through in another order: a disturbance lasts longer than one
    timing, and must not always meet neighbours.

    progress: called with (timings done, of all). Points that the target cannot hold are left out.
    Raises DraftwoodError if none is left to fit.
    """
    plan = [*FITTED, *HELD_OUT]
    best: dict[tuple[int, int], float] = {}
    for repeat in range(repeats):
        shuffled = random.Random(repeat).sample(plan, len(plan))
        for number, point in enumerate(shuffled):
            progress(repeat * len(plan) + number, repeats * len(plan))
            if repeat and point not in best:
                continue
            try:
                seconds = costs.seconds(*point)
            except DraftwoodError:  # it holds fewer tokens than that
                continue
            best[point] = min(seconds, best.get(point, math.inf))
    fitted, held_out = _probes(best, FITTED), _probes(best, HELD_OUT)
    if not fitted:
        raise DraftwoodError("the target holds too few tokens for any point to be measured")
    peaks = costs.peaks()
    roof = fit(costs, peaks, fitted)
    prices = Prices(roof, residuals(roof, fitted), source="probe")
    return Calibration(peaks, prices, tuple(fitted), tuple(held_out))


def _probes(
    best: Mapping[tuple[int, int], float], points: Sequence[tuple[int, int]]
) -> list[Probe]:
    return monotone([Probe(*point, best[point]) for point in points if point in best])
