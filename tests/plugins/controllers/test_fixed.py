"""The fixed controller: the same budget every round, and no more."""

import pytest

from draftwood.core.interfaces import ControllerState
from draftwood.core.values import Limits, RoundContext
from draftwood.plugins.controllers.fixed import Fixed
from draftwood.plugins.controllers.options import FixedOptions

from .machine import Costs, Simulation, tree_of

STATE: ControllerState[None, None] = ControllerState(None, None)
CTX = RoundContext(0, 10, 100)


def test_the_budget_is_the_option() -> None:
    controller = Fixed(FixedOptions(nodes=12, depth=3))
    assert controller.before_draft(CTX, STATE) == Limits(12, 3)
    assert controller.choose(tree_of(9), CTX, STATE) == 9
    assert controller.explain(STATE) is None


def test_the_machine_is_not_measured() -> None:
    costs = Costs()
    controller = Fixed(FixedOptions())
    assert controller.init(costs) is None
    assert costs.probes == []


def test_a_useless_drafter_is_used_for_ever() -> None:
    """What roofline must not do: negative control of its test of the same name."""
    rounds = Simulation(Fixed(FixedOptions(nodes=8)), None, acceptance=0.0).run(100)
    assert {stats.budget for stats in rounds} == {8}


def test_no_nodes_is_plain_decoding_and_says_so() -> None:
    controller = Fixed(FixedOptions(nodes=0))
    assert controller.before_draft(CTX, STATE).nodes == 0
    assert "fixed at 0" in (controller.explain(STATE) or "")


@pytest.mark.parametrize("options", [{"nodes": -1}, {"depth": 0}])
def test_impossible_options_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be >="):
        FixedOptions(**options)
