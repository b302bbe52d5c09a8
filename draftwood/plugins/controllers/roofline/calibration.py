"""A thorough measurement of a machine and a target, with held-out points to judge the fit."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import frozen

from draftwood.core.errors import DraftwoodError
from draftwood.core.interfaces.controller import CostProbe
from draftwood.plugins.controllers.roofline.corrections import Corrections
from draftwood.plugins.controllers.roofline.cost_model import CostModel
from draftwood.plugins.controllers.roofline.fitting import fit_residuals, fit_roof
from draftwood.plugins.controllers.roofline.measuring import Probe, monotone
from draftwood.plugins.controllers.roofline.roof import Roof

FITTED = tuple(
    (s, c) for c in (64, 512, 2048) for s in (1, 2, 4, 8, 9, 16, 17, 32, 33, 64, 65, 128, 256)
)
HELD_OUT = (
    *((s, c) for c in (256, 1024) for s in (1, 3, 6, 12, 24, 48, 96, 192)),
    *((s, 2048) for s in (3, 12, 48, 192)),
)
"""(tokens, context) that the cost model is fitted to, and others that it is tested on."""


@frozen(eq=False)
class CountedCosts:
    """A `CostProbe` with another count of operations.

    Attributes:
        costs: Everything else.
        flops: Operations of a forward, called with (tokens, context).
    """

    costs: CostProbe
    flops: Callable[[int, int], float]

    @property
    def identity(self) -> Mapping[str, str]:
        return self.costs.identity

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.costs.sizes

    def seconds(self, tokens: int, context: int) -> float:
        return self.costs.seconds(tokens, context)

    def bytes(self, tokens: int, context: int) -> float:
        return self.costs.bytes(tokens, context)

    def peaks(self) -> tuple[float, float]:
        return self.costs.peaks()


@frozen(eq=False)
class Calibration:
    """A measured machine.

    Attributes:
        peaks: (FLOP/s, bytes/s) of the device.
        model: Fitted to `fitted` alone.
        fitted: Measurements behind the fit.
        held_out: Other measurements, which test it.
    """

    peaks: tuple[float, float]
    model: CostModel
    fitted: tuple[Probe, ...]
    held_out: tuple[Probe, ...]

    @property
    def roof(self) -> Roof:
        assert isinstance(self.model.forward_model, Roof)
        return self.model.forward_model

    def predicted(self, probe: Probe) -> float:
        """Predicted seconds of this forward."""
        return float(self.model.forward(probe.tokens, probe.context))

    def error(self, probe: Probe) -> float:
        """(predicted - measured) / measured."""
        return self.predicted(probe) / probe.seconds - 1.0

    def quality(self) -> dict[str, float | None]:
        """Errors on held-out points; None without such points.

        Returns:
            median and largest absolute relative error, and roof_median, the median error of the
            roofs without residuals.
        """
        if not self.held_out:
            return {"median": None, "largest": None, "roof_median": None}
        errors = [abs(self.error(probe)) for probe in self.held_out]
        roof = [
            abs(float(self.roof.seconds(probe.tokens, probe.context)) / probe.seconds - 1.0)
            for probe in self.held_out
        ]
        return {
            "median": float(np.median(errors)),
            "largest": max(errors),
            "roof_median": float(np.median(roof)),
        }

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
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> Calibration:
    """Time every point `repeats` times and keep the fastest timing.

    Each repeat visits the points in another order, because a disturbance lasts longer than one
    timing and must not always hit the same neighbours.

    Args:
        costs: The target and machine. Points that exceed the target's limit are left out.
        repeats: Timings of each point.
        progress: Called with (timings done, timings in all).

    Raises:
        DraftwoodError: No point could be timed.
    """
    plan = [*FITTED, *HELD_OUT]
    fastest: dict[tuple[int, int], float] = {}
    for repeat in range(repeats):
        shuffled = random.Random(repeat).sample(plan, len(plan))
        for number, point in enumerate(shuffled):
            progress(repeat * len(plan) + number, repeats * len(plan))
            if repeat and point not in fastest:
                continue
            try:
                seconds = costs.seconds(*point)
            except DraftwoodError:  # beyond the target's limit
                continue
            fastest[point] = min(seconds, fastest.get(point, math.inf))
    fitted, held_out = _probes(fastest, FITTED), _probes(fastest, HELD_OUT)
    if not fitted:
        raise DraftwoodError("the target holds too few tokens for any point to be measured")
    peaks = costs.peaks()
    roof = fit_roof(costs, peaks, fitted)
    model = CostModel(roof, Corrections(fit_residuals(roof, fitted)), source="probe")
    return Calibration(peaks, model, tuple(fitted), tuple(held_out))


def _probes(
    fastest: Mapping[tuple[int, int], float], points: Sequence[tuple[int, int]]
) -> list[Probe]:
    return monotone([Probe(*point, fastest[point]) for point in points if point in fastest])
