"""The plugin `measured`: roofline's decisions on a table of measured forwards."""

from collections.abc import Callable

from draftwood.core.errors import DraftwoodError
from draftwood.core.interfaces.controller import CostProbe
from draftwood.core.processes import now
from draftwood.plugins.controllers.options import MeasuredOptions
from draftwood.plugins.controllers.roofline import store
from draftwood.plugins.controllers.roofline.cost_based import CostBasedController
from draftwood.plugins.controllers.roofline.cost_model import CostModel
from draftwood.plugins.controllers.roofline.forward_table import ForwardTable
from draftwood.plugins.controllers.roofline.measuring import monotone, time_forwards
from draftwood.plugins.controllers.roofline.probing import confirmed


class Measured(CostBasedController):
    """A baseline for roofline: the difference is what its roofs and corrections gain.

    Forward times are those of the table throughout; only the times of the other stages are learnt.

    Args:
        options: Of the plugin.
        clock: Seconds, for the limit on measuring.
    """

    def __init__(self, options: MeasuredOptions, clock: Callable[[], float] = now) -> None:
        super().__init__(options.max_nodes, options.objective, learns=True)
        self.options, self.clock = options, clock

    def cost_model(self, costs: CostProbe) -> CostModel:
        """Stored measurements, such as those of `draftwood calibrate`, if new timings confirm them;
        else new measurements, which are not stored.

        Raises:
            DraftwoodError: No forward could be timed within the limit.
        """
        probes = [] if self.options.refresh else store.load_probes(costs.identity)
        if probes:
            model = CostModel(ForwardTable.of(monotone(probes)), source="store")
            if confirmed(model, costs):
                return model
        probes = time_forwards(costs, self.clock, self.clock() + self.options.probe_seconds)
        if not probes:
            raise DraftwoodError(
                f"no forward could be timed in {self.options.probe_seconds:g} s; "
                "raise controller.probe_seconds, or use roofline"
            )
        return CostModel(ForwardTable.of(monotone(probes)), source="probe")
