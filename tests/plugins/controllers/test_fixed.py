"""The fixed controller: the same budget every round."""

import pytest

from draftwood.core.interfaces import ControllerState
from draftwood.core.values import Limits, RoundContext
from draftwood.plugins.controllers.fixed import Fixed
from draftwood.plugins.controllers.options import FixedOptions

from .machine import Costs, Simulation, tree_of

STATE: ControllerState[None, None] = ControllerState(None, None)
CTX = RoundContext(0, 10, 100)


def test_the_budget_equals_the_option() -> None:
    controller = Fixed(FixedOptions(nodes=12, depth=3))
    assert controller.before_draft(CTX, STATE) == Limits(12, 3)
    assert controller.choose(tree_of(9), CTX, STATE) == 9
    assert controller.explain(STATE) is None


def test_the_machine_is_not_measured() -> None:
    costs = Costs()
    controller = Fixed(FixedOptions())
    assert controller.init(costs) is None
    assert costs.probes == []


def test_a_useless_drafter_is_never_switched_off() -> None:
    """Negative control of roofline's test that switches it off."""
    rounds = Simulation(Fixed(FixedOptions(nodes=8)), None, acceptance=0.0).run(100)
    assert {stats.budget for stats in rounds} == {8}


def test_zero_nodes_decodes_plainly_and_explains_it() -> None:
    controller = Fixed(FixedOptions(nodes=0))
    assert controller.before_draft(CTX, STATE).nodes == 0
    assert "fixed at 0" in (controller.explain(STATE) or "")


@pytest.mark.parametrize("options", [{"nodes": -1}, {"depth": 0}])
def test_negative_nodes_and_zero_depth_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be >="):
        FixedOptions(**options)
