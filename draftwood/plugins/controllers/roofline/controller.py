"""The plugin `roofline`: budgets by two roofs over forward times, corrected by round times."""

from collections.abc import Callable

from draftwood.core.interfaces.controller import CostProbe
from draftwood.core.processes import now
from draftwood.plugins.controllers.options import RooflineOptions
from draftwood.plugins.controllers.roofline import store
from draftwood.plugins.controllers.roofline.cost_based import CostBasedController
from draftwood.plugins.controllers.roofline.cost_model import CostModel
from draftwood.plugins.controllers.roofline.measuring import CONTEXTS
from draftwood.plugins.controllers.roofline.probing import (
    CONFIRMED_SIZES,
    confirmed,
    nominal,
    probe_machine,
)


class Roofline(CostBasedController):
    """The best budget by two roofs and their corrections (BASTION, arXiv 2605.29727).

    Args:
        options: Of the plugin.
        clock: Seconds, for the limit on probing.
    """

    def __init__(self, options: RooflineOptions, clock: Callable[[], float] = now) -> None:
        super().__init__(options.max_nodes, options.objective, learns=options.clock == "wall")
        self.options, self.clock = options, clock

    def cost_model(self, costs: CostProbe) -> CostModel:
        """The stored cost model if new timings confirm it, else a measured one, which is stored."""
        if self.options.clock == "nominal":
            return nominal(costs)
        stored = None if self.options.refresh else store.load(costs.identity)
        if stored is not None and confirmed(stored, costs):
            return stored
        model, probes = probe_machine(costs, self.clock, self.options.probe_seconds)
        # A busy machine is not a slower one: times measured on a quiet machine are kept.
        if model.source == "probe" and (stored is None or _faster(model, stored)):
            store.save(costs.identity, model, probes)
        return model


def _faster(model: CostModel, other: CostModel) -> bool:
    """Whether the larger forward that `confirmed` compares takes less time."""
    point = (CONFIRMED_SIZES[-1], CONTEXTS[0])
    return bool(model.forward(*point) < other.forward(*point))
