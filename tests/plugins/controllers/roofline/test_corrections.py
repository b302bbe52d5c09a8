"""How far one round or probe changes the cost model, and how decisions use it."""

import math

import pytest
from attrs import evolve

from draftwood.core.interfaces.controller import ControllerState
from draftwood.core.tree import TokenTree
from draftwood.core.values import RoundContext, RoundStats, Timings, Verdict
from draftwood.plugins.controllers.options import RooflineOptions
from draftwood.plugins.controllers.roofline import Roofline
from draftwood.plugins.controllers.roofline.acceptance import AcceptanceEstimate
from draftwood.plugins.controllers.roofline.corrections import (
    KNOTS,
    MAX_ERROR,
    MAX_RESIDUAL,
    STEP,
    Corrections,
)
from draftwood.plugins.controllers.roofline.cost_based import RequestState
from draftwood.plugins.controllers.roofline.cost_model import CostModel
from draftwood.plugins.controllers.roofline.measuring import SIZES, time_forwards
from draftwood.plugins.controllers.roofline.probing import confirmed, probe_machine
from draftwood.plugins.controllers.roofline.roof import Roof
from draftwood.plugins.controllers.roofline.speculation import SpeculationState
from draftwood.plugins.controllers.roofline.stage_times import WINDOW, StageTimes, lower_median

from ..machine import Costs, two_roofs

FLAT = Roof((0.0,) * 5, (0.01, 0.0, 0.0, 0.0, 0.0))
AT_16 = KNOTS.index(16)


def after(model: CostModel, *rounds: tuple[int, float]) -> CostModel:
    """After rounds of (tokens, log of measured over the roof)."""
    for tokens, ratio in rounds:
        timings = Timings(verify=0.01 * math.exp(ratio))
        model = model.learn(timings, tokens - 1, 64, True, True)
    return model


def around(tokens: int, ratio: float) -> list[tuple[int, float]]:
    """A window of rounds of four tokens, with a round of `tokens` in its middle."""
    others = [(4, 0.0)] * (WINDOW // 2)
    return [*others, (tokens, ratio), *others]


def test_one_round_changes_its_residual_by_a_bounded_step() -> None:
    assert after(CostModel(FLAT), *around(16, 0.2)).corrections.residuals[AT_16] == pytest.approx(
        STEP * 0.2
    )
    for ratio in (5.0, -5.0):
        found = after(CostModel(FLAT), *around(16, ratio)).corrections.residuals
        assert found[AT_16] == pytest.approx(math.copysign(STEP * MAX_ERROR, ratio))
        assert sum(map(abs, found)) == pytest.approx(STEP * MAX_ERROR)


def test_a_size_between_knots_changes_both_by_their_weights() -> None:
    found = after(CostModel(FLAT), *around(14, 0.2)).corrections.residuals
    share = math.log(14 / 12) / math.log(16 / 12)
    assert found[AT_16] == pytest.approx(STEP * share * 0.2)
    assert found[AT_16 - 1] == pytest.approx(STEP * (1.0 - share) * 0.2)


def test_residuals_stay_within_a_factor_of_four() -> None:
    for sign in (1.0, -1.0):
        residuals = (sign * (MAX_RESIDUAL - 1e-3),) * len(KNOTS)
        known = CostModel(FLAT, Corrections(residuals))
        there = [(4, sign * (MAX_RESIDUAL - 1e-3))] * (WINDOW // 2)
        found = after(known, *there, (16, sign * 9.0), *there)
        assert found.corrections.residuals[AT_16] == pytest.approx(sign * MAX_RESIDUAL, abs=1e-12)


def test_only_the_middle_round_of_the_window_is_corrected() -> None:
    """A change in the last rounds may be a slower machine."""
    late = [*around(4, 0.0)[:-1], (16, 0.2)]
    assert after(CostModel(FLAT), *late).corrections.residuals == (0.0,) * len(KNOTS)


def test_a_forward_of_zero_seconds_changes_no_correction() -> None:
    known = after(CostModel(FLAT), (4, 0.1))
    assert known.learn(Timings(), 3, 64, True, True).corrections == known.corrections


def test_lower_median_drops_the_warm_up_after_the_second_round() -> None:
    assert [lower_median(w, 7.0) for w in ((), (9.0,), (9.0, 1.0), (9.0, 1.0, 2.0))] == [7, 9, 1, 2]


def test_an_unmeasured_plain_step_uses_the_overhead_of_other_rounds() -> None:
    known = CostModel(FLAT, stages=StageTimes(other=(3e-3,)))
    assert known.plain_step(64) == pytest.approx(13e-3)
    known = evolve(known, stages=evolve(known.stages, plain=(1e-3,)))
    assert known.plain_step(64) == pytest.approx(11e-3)


def test_floors_are_lowered_by_the_largest_gain() -> None:
    steep = CostModel(Roof((0.0, 1e-3, 0.0, 0.0, 0.0), (0.0,) * 5))
    one, three = (steep.floors(4, 64, 50.0, gain) for gain in (1.0, 3.0))
    assert one == pytest.approx([math.log(0.05)] * 4)
    assert three == pytest.approx([floor - math.log(3.0) for floor in one])


def test_limits_have_no_floor_for_the_first_node_and_lower_floors_by_the_requests_gain() -> None:
    controller = Roofline(RooflineOptions())
    steep = CostModel(Roof((0.0, 1e-3, 0.0, 0.0, 0.0), (0.0,) * 5))
    optimistic = AcceptanceEstimate((40.0,), (20.0,))
    found = []
    for acceptance in (AcceptanceEstimate(), optimistic):
        state = ControllerState(steep, RequestState(acceptance))
        limits = controller.before_draft(RoundContext(0, 64, 100, None), state)
        assert limits.floors[0] == -math.inf
        found.append(limits.floors[1])
    assert found[0] - found[1] == pytest.approx(math.log(optimistic.max_gain()))
    assert optimistic.max_gain() > 1.5


def test_a_trial_after_a_pause_keeps_a_fifth_of_the_acceptance_counts() -> None:
    controller, known = Roofline(RooflineOptions()), AcceptanceEstimate((10.0,), (20.0,))

    def after_plain(state: SpeculationState) -> AcceptanceEstimate:
        run = RequestState(known, state)
        return controller.observe(
            plain_round(), ControllerState(CostModel(FLAT), run)
        ).request.acceptance

    assert after_plain(SpeculationState(on=False, wait=1)) == AcceptanceEstimate((2.0,), (4.0,))
    assert after_plain(SpeculationState(on=False, wait=2)) == known
    assert (
        after_plain(SpeculationState(on=True, wait=1)) == known
    )  # a plain step that checks its price


def plain_round() -> RoundStats:
    return RoundStats(
        request=0,
        round=1,
        context=64,
        drafted=False,
        grown=0,
        budget=0,
        accepted=0,
        committed=1,
        tree=TokenTree.root(0),
        verdict=Verdict((0,), 0),
        timings=Timings(verify=0.01),
    )


@pytest.mark.parametrize("factor", [0.2, 5.0])
def test_stored_times_that_differ_fivefold_are_not_confirmed(factor: float) -> None:
    known = CostModel(FLAT)
    assert confirmed(known, Costs(lambda tokens, context: 0.01))
    assert not confirmed(known, Costs(lambda tokens, context: 0.01 * factor))


def test_the_fastest_positive_timing_of_each_size_counts() -> None:
    slowness = iter([3.0] * 16 + [1.0] * 16 + [0.0] * 16 + [2.0] * 999)
    costs = Costs(lambda tokens, context: next(slowness) * 0.01)
    probes = time_forwards(costs, lambda: 0.0, 1.0)
    assert len(probes) == len({(probe.tokens, probe.context) for probe in probes}) == 16
    assert {probe.seconds for probe in probes} == {0.01}
    assert {probe.context for probe in probes} == {64, 1024}


def test_padded_sizes_beyond_the_largest_probe_are_not_timed() -> None:
    costs = Costs(two_roofs, sizes=(1, 5, 17, SIZES[-1], 513))
    assert max(probe.tokens for probe in time_forwards(costs, lambda: 0.0, 1.0)) == SIZES[-1]


def test_few_probes_scale_the_prior_by_their_median_ratio() -> None:
    """One disturbed probe does not change the median."""

    def price(tokens: int, context: int) -> float:
        return 4.0 if tokens == 17 else 0.02

    costs = Costs(price, sizes=(1, 2, 5, 17))
    found, _ = probe_machine(costs, lambda: 0.0, 1.0)
    assert found.forward_model.seconds(1, 64) < 0.1
