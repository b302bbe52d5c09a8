"""The roofline controller's decision on a table of measured forwards, with no model of them."""

from collections.abc import Callable

from attrs import evolve

from draftwood.core.errors import DraftwoodError
from draftwood.core.interfaces.controller import CostProbe
from draftwood.core.processes import now
from draftwood.plugins.controllers.options import MeasuredOptions
from draftwood.plugins.controllers.roofline import store
from draftwood.plugins.controllers.roofline.controller import BestBudget, confirmed
from draftwood.plugins.controllers.roofline.prices import Prices
from draftwood.plugins.controllers.roofline.probing import measure, monotone
from draftwood.plugins.controllers.roofline.table import Table


class Measured(BestBudget):
    """What the roofs and their correction are worth is the difference to this one.

    Forwards cost what the table says, all the time; only the times of drafting, growing and the
    rest are learnt while decoding. clock: seconds, for the limit on measuring.
    """

    def __init__(self, options: MeasuredOptions, clock: Callable[[], float] = now) -> None:
        super().__init__(options.max_nodes, options.objective, learns=True)
        self.options, self.clock = options, clock

    def init(self, costs: CostProbe) -> Prices:
        """Measurements on disk, those of `draftwood calibrate` for one, if a probe confirms them;
        else new ones, which are kept in memory only. Raises DraftwoodError if there are none."""
        return evolve(self._known(costs), sizes=costs.sizes)

    def _known(self, costs: CostProbe) -> Prices:
        stored = store.load_probes(costs.identity)
        if stored and not self.options.refresh:
            prices = Prices(Table.of(monotone(stored)), source="store")
            if confirmed(prices, costs):
                return prices
        probes = measure(costs, self.clock, self.clock() + self.options.probe_seconds)
        if not probes:
            raise DraftwoodError(
                f"no forward could be timed in {self.options.probe_seconds:g} s; "
                "raise controller.probe_seconds, or use roofline"
            )
        return Prices(Table.of(monotone(probes)), source="probe")
