"""The plugin `fixed`: one budget for all rounds, the baseline of adaptive controllers."""

from draftwood.core.interfaces.controller import BudgetController, ControllerState, CostProbe
from draftwood.core.values import Limits, RoundContext
from draftwood.plugins.controllers.options import FixedOptions

State = ControllerState[None, None]


class Fixed(BudgetController[None, None]):
    """Verifies `nodes` draft nodes, or as many as the tree has. Measures and learns nothing."""

    def __init__(self, options: FixedOptions) -> None:
        self.options = options

    def init(self, costs: CostProbe) -> None:
        return None

    def open(self) -> None:
        return None

    def before_draft(self, ctx: RoundContext, state: State) -> Limits:
        return Limits(self.options.nodes, self.options.depth)

    def explain(self, state: State) -> str | None:
        return "the budget is fixed at 0 nodes" if self.options.nodes == 0 else None
