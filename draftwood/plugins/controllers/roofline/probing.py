"""The cost model of a new pipeline: from counted work, or from a short measurement."""

from collections.abc import Callable

from draftwood.core.errors import DraftwoodError
from draftwood.core.interfaces.controller import CostProbe
from draftwood.plugins.controllers.roofline.corrections import Corrections
from draftwood.plugins.controllers.roofline.cost_model import CostModel
from draftwood.plugins.controllers.roofline.fitting import (
    fit_residuals,
    fit_roof,
    prior_roof,
    scale_roof,
)
from draftwood.plugins.controllers.roofline.measuring import (
    CONTEXTS,
    Probe,
    monotone,
    time_forwards,
)

NOMINAL = (1e12, 5e10)
"""FLOP/s and bytes/s of no machine in particular: 20 operations a byte, between a CPU's balance
and a GPU's, so that 40 tokens in float32 take about twice the time of one."""

MIN_FITTED_SIZES = 5
"""Distinct sizes needed to fit the two roofs; with fewer the prior is only scaled."""

CONFIRMED_SIZES = (1, 16)
"""Tokens of the forwards that stored times are compared at."""

STORED_TOLERANCE = 2.0
"""Factor by which a stored time may differ from a new timing before the machine is measured
again."""


def nominal(costs: CostProbe) -> CostModel:
    """A cost model from counted work at fixed rates: the same on every machine."""
    return CostModel(prior_roof(costs, NOMINAL))


def probe_machine(
    costs: CostProbe, clock: Callable[[], float], limit: float
) -> tuple[CostModel, list[Probe]]:
    """Measure the machine for at most `limit` seconds, read from `clock`.

    Device rates come first, then forwards, the cheapest first; what was not measured is predicted
    from counted work at the device's rates.

    Returns:
        The cost model and the measurements behind it.
    """
    end = clock() + limit
    peaks = costs.peaks()
    probes = monotone(time_forwards(costs, clock, end))
    if len({probe.tokens for probe in probes}) >= MIN_FITTED_SIZES:
        roof = fit_roof(costs, peaks, probes)
    else:
        roof = scale_roof(prior_roof(costs, peaks), probes)
    residuals = fit_residuals(roof, probes)
    source = "probe" if probes else "prior"
    return CostModel(roof, Corrections(residuals), source=source), probes


def confirmed(model: CostModel, costs: CostProbe) -> bool:
    """Whether new timings of a small and a larger forward agree with the model."""
    for tokens in CONFIRMED_SIZES:
        try:
            seconds = costs.seconds(tokens, CONTEXTS[0])
        except DraftwoodError:  # beyond the target's limit: nothing to compare
            continue
        ratio = seconds / float(model.forward(tokens, CONTEXTS[0]))
        if not 1.0 / STORED_TOLERANCE <= ratio <= STORED_TOLERANCE:
            return False
    return True
