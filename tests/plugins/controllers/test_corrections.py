"""How far one round or one probe may move a price, and what a decision reads of it."""

import math

import pytest
from attrs import evolve

from draftwood.core.interfaces.controller import ControllerState
from draftwood.core.tree import TokenTree
from draftwood.core.values import RoundContext, RoundStats, Timings, Verdict
from draftwood.plugins.controllers.options import RooflineOptions
from draftwood.plugins.controllers.roofline import Roofline
from draftwood.plugins.controllers.roofline.acceptance import Acceptance
from draftwood.plugins.controllers.roofline.controller import Text, confirmed
from draftwood.plugins.controllers.roofline.prices import (
    CLIP,
    FARTHEST,
    KNOTS,
    STEP,
    WINDOW,
    Prices,
    Roof,
    middle,
)
from draftwood.plugins.controllers.roofline.probing import SIZES, measure, probed
from draftwood.plugins.controllers.roofline.switch import Switch

from .machine import Costs, two_roofs

FLAT = Roof((0.0,) * 5, (0.01, 0.0, 0.0, 0.0, 0.0))
AT_16 = KNOTS.index(16)


def after(prices: Prices, *rounds: tuple[int, float]) -> Prices:
    """After rounds of (tokens, log of measured over the roof)."""
    for tokens, ratio in rounds:
        timings = Timings(verify=0.01 * math.exp(ratio))
        prices = prices.learn(timings, tokens - 1, 64, True, True)
    return prices


def around(tokens: int, ratio: float) -> list[tuple[int, float]]:
    """A window of rounds of one size, with a round of this one in its middle."""
    others = [(4, 0.0)] * (WINDOW // 2)
    return [*others, (tokens, ratio), *others]


def test_one_round_moves_its_size_by_a_bounded_step() -> None:
    assert after(Prices(FLAT), *around(16, 0.2)).residuals[AT_16] == pytest.approx(STEP * 0.2)
    for ratio in (5.0, -5.0):
        found = after(Prices(FLAT), *around(16, ratio)).residuals
        assert found[AT_16] == pytest.approx(math.copysign(STEP * CLIP, ratio))
        assert sum(map(abs, found)) == pytest.approx(STEP * CLIP)


def test_a_size_between_two_knots_moves_each_by_its_share() -> None:
    found = after(Prices(FLAT), *around(14, 0.2)).residuals
    share = math.log(14 / 12) / math.log(16 / 12)
    assert found[AT_16] == pytest.approx(STEP * share * 0.2)
    assert found[AT_16 - 1] == pytest.approx(STEP * (1.0 - share) * 0.2)


def test_no_size_is_corrected_farther_than_fourfold() -> None:
    for sign in (1.0, -1.0):
        known = evolve(Prices(FLAT), residuals=(sign * (FARTHEST - 1e-3),) * len(KNOTS))
        there = [(4, sign * (FARTHEST - 1e-3))] * (WINDOW // 2)
        found = after(known, *there, (16, sign * 9.0), *there)
        assert found.residuals[AT_16] == pytest.approx(sign * FARTHEST, abs=1e-12)


def test_the_middle_round_of_a_window_is_the_one_that_is_judged() -> None:
    """What came last may be where the machine slows down."""
    late = [*around(4, 0.0)[:-1], (16, 0.2)]
    assert after(Prices(FLAT), *late).residuals == (0.0,) * len(KNOTS)


def test_a_forward_that_took_no_time_teaches_nothing() -> None:
    known = after(Prices(FLAT), (4, 0.1))
    assert known.learn(Timings(), 3, 64, True, True).ratios == known.ratios


def test_the_second_round_makes_the_first_ones_warm_up_forgotten() -> None:
    assert [middle(w, 7.0) for w in ((), (9.0,), (9.0, 1.0), (9.0, 1.0, 2.0))] == [7, 9, 1, 2]


def test_a_plain_step_that_was_never_seen_takes_what_other_rounds_do_beside_the_forward() -> None:
    known = Prices(FLAT, other=(3e-3,))
    assert known.plain_step(64) == pytest.approx(13e-3)
    assert evolve(known, plain=(1e-3,)).plain_step(64) == pytest.approx(11e-3)


def test_floors_fall_by_what_a_correction_may_raise() -> None:
    steep = Prices(Roof((0.0, 1e-3, 0.0, 0.0, 0.0), (0.0,) * 5))
    one, three = (steep.floors(4, 64, 50.0, gain) for gain in (1.0, 3.0))
    assert one == pytest.approx([math.log(0.05)] * 4)
    assert three == pytest.approx([floor - math.log(3.0) for floor in one])


def test_limits_leave_the_first_node_free_and_trust_what_a_text_may_raise() -> None:
    controller = Roofline(RooflineOptions())
    steep = Prices(Roof((0.0, 1e-3, 0.0, 0.0, 0.0), (0.0,) * 5))
    eager = Acceptance((40.0,), (20.0,))
    found = []
    for acceptance in (Acceptance(), eager):
        state = ControllerState(steep, Text(acceptance))
        limits = controller.before_draft(RoundContext(0, 64, 100, None), state)
        assert limits.floors[0] == -math.inf
        found.append(limits.floors[1])
    assert found[0] - found[1] == pytest.approx(math.log(eager.gain()))
    assert eager.gain() > 1.5


def test_a_trial_after_a_pause_believes_a_fifth_of_what_was_learnt() -> None:
    controller, known = Roofline(RooflineOptions()), Acceptance((10.0,), (20.0,))

    def after_plain(switch: Switch) -> Acceptance:
        run = Text(known, switch)
        return controller.observe(
            plain_round(), ControllerState(Prices(FLAT), run)
        ).request.acceptance

    assert after_plain(Switch(on=False, wait=1)) == Acceptance((2.0,), (4.0,))
    assert after_plain(Switch(on=False, wait=2)) == known
    assert after_plain(Switch(on=True, wait=1)) == known  # a plain step to check its price


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
def test_stored_prices_are_not_confirmed_by_other_times(factor: float) -> None:
    known = Prices(FLAT)
    assert confirmed(known, Costs(lambda tokens, context: 0.01))
    assert not confirmed(known, Costs(lambda tokens, context: 0.01 * factor))


def test_of_several_timings_the_fastest_that_took_time_counts() -> None:
    slowness = iter([3.0] * 16 + [1.0] * 16 + [0.0] * 16 + [2.0] * 999)
    costs = Costs(lambda tokens, context: next(slowness) * 0.01)
    probes = measure(costs, lambda: 0.0, 1.0)
    assert len(probes) == len({(probe.tokens, probe.context) for probe in probes}) == 16
    assert {probe.seconds for probe in probes} == {0.01}
    assert {probe.context for probe in probes} == {64, 1024}


def test_padded_sizes_beyond_the_largest_probe_are_not_probed() -> None:
    costs = Costs(two_roofs, sizes=(1, 5, 17, SIZES[-1], 513))
    assert max(probe.tokens for probe in measure(costs, lambda: 0.0, 1.0)) == SIZES[-1]


def test_few_probes_scale_the_prior_by_their_median() -> None:
    """One that was disturbed does not."""

    def price(tokens: int, context: int) -> float:
        return 4.0 if tokens == 17 else 0.02

    costs = Costs(price, sizes=(1, 2, 5, 17))
    found, _ = probed(costs, lambda: 0.0, 1.0)
    assert found.roof.seconds(1, 64) < 0.1
