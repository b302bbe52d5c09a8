"""The roofline controller: the best budget, or none, on machines and texts whose truth is known."""

import math
import random
import statistics
import time

import numpy as np
import pytest
from attrs import evolve

from draftwood.core.interfaces import ControllerState
from draftwood.core.tree import TokenTree
from draftwood.core.values import Timings
from draftwood.plugins.controllers.fixed import Fixed
from draftwood.plugins.controllers.options import FixedOptions, RooflineOptions
from draftwood.plugins.controllers.roofline import Roofline, cost_based, speculation
from draftwood.plugins.controllers.roofline.acceptance import AcceptanceEstimate
from draftwood.plugins.controllers.roofline.cost_based import FIRST_CAP, MIN_CAP, RequestState
from draftwood.plugins.controllers.roofline.speculation import MIN_ROUNDS, SpeculationState

from .machine import Costs, Price, Simulation, speed, tree_of, two_roofs


@pytest.fixture(autouse=True)
def own_store(tmp_path, monkeypatch):
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path))


def controller(**options: object) -> Roofline:
    return Roofline(RooflineOptions(**options))  # type: ignore[arg-type]


def simulation(price: Price = two_roofs, options: dict | None = None, **truth: object):
    roofline = controller(**(options or {}))
    machine = roofline.init(Costs(price))
    return Simulation(roofline, machine, price, **truth)  # type: ignore[arg-type]


def steep(tokens: int, context: int) -> float:
    return 0.010 + 0.002 * tokens


def flat(tokens: int, context: int) -> float:
    return 0.02 + 1e-6 * tokens


def stairs(tokens: int, context: int) -> float:
    """No two roofs: a step every sixteen tokens, as kernels with tiles have."""
    return 0.004 + 0.002 * math.ceil(tokens / 16)


def best_budget(tree: TokenTree, price: Price, run: Simulation) -> tuple[int, list[float]]:
    """argmax of S(N) over all N by its definition, with the true prices."""
    expected_tokens = run.state.request.acceptance.expected_tokens(tree)
    rest = run.draft + run.grow + run.other
    values = [gain / (rest + price(n + 1, run.context)) for n, gain in enumerate(expected_tokens)]
    return max(range(len(values)), key=values.__getitem__), values


@pytest.mark.parametrize("price", [two_roofs, steep, flat])
@pytest.mark.parametrize("best", [0.3, 0.7, 0.9])
def test_the_budget_is_the_best_of_all_budgets(price: Price, best: float) -> None:
    run = simulation(price, best=best)
    run.run(30)
    for nodes in (1, 5, 40, 200):
        tree = tree_of(nodes, best=best)
        expected, values = best_budget(tree, price, run)
        chosen = run.controller.choose(tree, run.ctx(), run.state)
        assert values[chosen] >= 0.995 * values[expected]
        # Negative control: on another machine that budget would be wrong.
        if price is steep and nodes == 200 and best > 0.5:
            there = best_budget(tree, flat, run)[1]
            assert there[chosen] < 0.9 * max(there)


def test_a_machine_unlike_two_roofs_is_learnt_by_size() -> None:
    run = simulation(stairs)
    run.run(300)
    tree = tree_of(100)
    _, values = best_budget(tree, stairs, run)
    chosen = run.controller.choose(tree, run.ctx(), run.state)
    assert values[chosen] >= 0.96 * max(values)


@pytest.mark.parametrize("acceptance", [1.0, 0.7, 0.4])
@pytest.mark.parametrize("noise", [0.0, 0.15])
def test_it_is_as_fast_as_the_best_fixed_budget(acceptance: float, noise: float) -> None:
    truth = {"acceptance": acceptance, "noise": noise}
    ours = speed(simulation(**truth).run(600))
    fixed = {
        nodes: speed(
            Simulation(Fixed(FixedOptions(nodes=nodes)), None, **truth).run(600)  # type: ignore[arg-type]
        )
        for nodes in (0, 4, 8, 16, 24, 32, 64)
    }
    assert ours > 0.95 * max(fixed.values())
    assert min(fixed.values()) < 0.8 * max(fixed.values())  # there was something to lose


@pytest.mark.covers("useless-drafter")
def test_a_useless_drafter_is_switched_off_and_the_result_says_so() -> None:
    run = simulation(acceptance=0.0)
    history = run.run(600)
    drafted = [stats.drafted for stats in history]
    off = drafted.index(False)
    assert off < 15
    assert not any(drafted[off : off + 16])
    assert sum(drafted[100:]) <= 0.08 * 500
    plain = 1.0 / (two_roofs(1, 64) + run.other)
    assert speed(history[100:]) > 0.97 * plain
    said = run.controller.explain(run.state)
    assert said is not None
    assert "did not pay" in said
    assert "it is off" in said


@pytest.mark.parametrize("best", [0.3, 0.9])  # it is as sure of itself as it likes
@pytest.mark.parametrize("draft", [0.002, 0.004])
def test_a_useless_drafter_costs_less_than_a_twentieth_of_short_requests(best, draft) -> None:
    """Each request believes in the drafter anew, so each pays for finding out."""
    roofline = controller()
    machine, rng = roofline.init(Costs(two_roofs)), random.Random(0)
    tokens = seconds = 0.0
    for _ in range(8):
        run = Simulation(
            roofline, machine, two_roofs, draft, acceptance=0.0, best=best, noise=0.05, rng=rng
        )
        history = run.run(128)  # a token each
        machine = run.state.machine
        tokens += sum(stats.committed for stats in history)
        seconds += sum(stats.timings.total for stats in history)
    plain = 1.0 / (two_roofs(1, 64) + run.other)
    assert tokens / seconds > 0.95 * plain
    # Negative control: without the switch it would be far slower.
    fixed = Simulation(Fixed(FixedOptions(nodes=8)), None, draft=draft, acceptance=0.0, best=best)
    assert speed(fixed.run(128)) < 0.85 * plain


def test_a_drafter_that_becomes_useful_is_used_again() -> None:
    run = simulation(acceptance=0.0)
    run.run(300)
    run.acceptance = 1.0
    after = run.run(400)
    assert all(stats.drafted for stats in after[150:])
    assert speed(after[150:]) > 2.5 / (two_roofs(1, 64) + run.other)
    assert "then on again" in (run.controller.explain(run.state) or "")


def test_a_useful_drafter_is_never_switched_off() -> None:
    """Negative control of the two tests above."""
    run = simulation(noise=0.1)
    assert all(stats.drafted for stats in run.run(400))
    assert run.controller.explain(run.state) is None


def test_a_drafter_too_slow_to_pay_is_switched_off() -> None:
    run = simulation(draft=0.05)
    run.run(60)
    assert not run.state.request.speculation.on
    quick = simulation(draft=0.002)
    quick.run(60)
    assert quick.state.request.speculation.on


def test_a_close_lead_is_checked_against_a_real_plain_step() -> None:
    """Trees that cost more than probes said must not make plain decoding look dear too."""

    def trees_cost_more(tokens: int, context: int) -> float:
        return two_roofs(tokens, context) * (1.0 if tokens == 1 else 1.5)

    run = simulation(acceptance=0.3, noise=0.02)
    run.price = trees_cost_more
    run.run(300)
    assert predicted(run, 1) == pytest.approx(two_roofs(1, run.context), rel=0.12)
    assert predicted(run, 25) == pytest.approx(trees_cost_more(25, run.context), rel=0.12)
    assert not run.state.request.speculation.on
    # Negative control: as cheap as the probes said, they pay.
    honest = simulation(acceptance=0.3, noise=0.02)
    honest.run(300)
    assert honest.state.request.speculation.on


def predicted(run: Simulation, tokens: int) -> float:
    return float(run.state.machine.forward(tokens, run.context))


def test_a_slowed_machine_is_followed_within_twenty_rounds() -> None:
    run = simulation(noise=0.05)
    run.run(60)
    run.spike = 2.5  # every stage, as when a machine is throttled
    run.run(20)
    for tokens in (1, 8, 33, 65):
        assert predicted(run, tokens) == pytest.approx(
            2.5 * two_roofs(tokens, run.context), rel=0.15
        )
    assert run.state.machine.overhead(64) == pytest.approx(2.5 * 0.0027, rel=0.15)
    # Negative control: the nominal clock follows nothing.
    frozen = simulation(options={"clock": "nominal"}, noise=0.05)
    before = predicted(frozen, 33)
    frozen.spike = 2.5
    frozen.run(20)
    assert predicted(frozen, 33) == pytest.approx(before, rel=0.1)


def test_a_spike_moves_nothing() -> None:
    run = simulation(noise=0.05)
    run.run(60)
    before = [predicted(run, tokens) for tokens in (1, 33)], run.state.machine.overhead(64)
    run.spike = 20.0
    run.run(1)
    run.spike = 1.0
    run.run(3)
    after = [predicted(run, tokens) for tokens in (1, 33)], run.state.machine.overhead(64)
    assert after[0] == pytest.approx(before[0], rel=0.1)
    assert after[1] == pytest.approx(before[1], rel=0.1)
    # Negative control: a plain average of nine rounds would have tripled.
    ratios = [math.exp(ratio) for ratio, _ in run.state.machine.corrections.ratios]
    assert statistics.mean(ratios) > 2.0


def test_taking_in_what_the_drafter_missed_is_no_price_of_a_round() -> None:
    run = simulation()
    run.other = 0.5  # the prompt's features, taken in by the first draft
    run.run(1)
    run.other = 0.0005
    assert run.state.machine.overhead(64) < 0.02
    run.run(5)
    assert run.state.machine.overhead(64) == pytest.approx(0.0027, rel=0.01)


def test_what_is_learnt_of_a_text_is_forgotten_with_it_and_of_the_machine_is_not() -> None:
    run = simulation(acceptance=0.3)
    run.run(50)
    assert run.controller.open() == RequestState()
    assert run.state.request != RequestState()
    assert run.state.machine.stages.draft


def test_growth_is_capped_near_the_budgets_that_paid() -> None:
    run = simulation()
    caps = [stats.grown for stats in run.run(40)]
    assert caps[0] == FIRST_CAP
    assert MIN_CAP <= caps[-1] <= FIRST_CAP
    wide = simulation(flat)
    grown = [stats.grown for stats in wide.run(40)]
    assert grown[0] == FIRST_CAP
    assert grown[-1] == 256  # where larger trees are free the cap follows
    small = simulation(options={"max_nodes": 5})
    assert {stats.grown for stats in small.run(10)} == {5}


@pytest.mark.parametrize("price", [two_roofs, steep, stairs])
@pytest.mark.parametrize("best", [0.3, 0.7, 0.9])
@pytest.mark.parametrize("acceptance", [1.0, 0.6])
def test_what_is_not_grown_would_not_have_been_chosen(
    price: Price, best: float, acceptance: float
) -> None:
    run = simulation(price, best=best, acceptance=acceptance)
    ended = 0
    for _ in range(25):
        run.run(2)
        if not run.state.request.speculation.drafts:
            continue
        limits = run.controller.before_draft(run.ctx(), run.state)
        whole = tree_of(limits.nodes, best=best)
        chosen = run.controller.choose(whole, run.ctx(), run.state)
        below = [n for n, s in enumerate(whole.log_rho_list[1:]) if s < limits.floors[n]]
        grown = below[0] if below else whole.nodes
        assert chosen <= grown
        ended += grown < whole.nodes
    if price is steep and best < 0.9:
        assert ended > 2  # there was growing to save


def test_a_floor_six_times_too_high_would_cost_nodes_that_pay() -> None:
    """Negative control of the test above. A floor has room: it knows no more of a round's pace
    than what the root alone would make."""
    run = simulation(steep, best=0.9)
    run.run(20)
    limits = run.controller.before_draft(run.ctx(), run.state)
    whole = tree_of(limits.nodes, best=0.9)
    chosen = run.controller.choose(whole, run.ctx(), run.state)
    wrong = [floor + math.log(6.0) for floor in limits.floors]
    assert any(s < wrong[n] for n, s in enumerate(whole.log_rho_list[1 : chosen + 1]))


def test_rate_and_speed_agree_where_rounds_are_alike() -> None:
    """With equal rounds the pace is the best speed, and both objectives have one optimum."""
    by_speed = simulation(options={"objective": "speed"})
    by_rate = simulation(options={"objective": "rate"})
    budgets = [
        statistics.median(s.budget for s in run.run(200)[50:]) for run in (by_speed, by_rate)
    ]
    assert budgets[0] == pytest.approx(budgets[1], abs=6)


def test_rate_spends_more_on_a_round_that_promises_more() -> None:
    run = simulation(steep, {"objective": "rate"}, best=0.5)
    run.run(60)
    ctx, state = run.ctx(), run.state
    cuts = [run.controller.choose(tree_of(64, best=best), ctx, state) for best in (0.5, 0.9)]
    assert cuts[0] < cuts[1]


def test_the_nominal_clock_gives_the_same_budgets_on_every_machine() -> None:
    def budgets(price: Price, noise: float, clock: str) -> list[int]:
        run = simulation(price, {"clock": clock, "refresh": True}, noise=0.0)
        run.spike = 1.0
        if noise:
            stream = random.Random(1)
            history = []
            for _ in range(60):
                run.spike = stream.lognormvariate(0.0, noise)
                history += run.run(1)
            return [stats.budget for stats in history]
        return [stats.budget for stats in run.run(60)]

    nominal = budgets(two_roofs, 0.0, "nominal")
    assert nominal == budgets(steep, 0.5, "nominal")
    # Negative control: the wall clock's differ.
    assert budgets(two_roofs, 0.0, "wall") != budgets(steep, 0.5, "wall")


def test_the_nominal_clock_probes_nothing() -> None:
    costs = Costs()
    controller(clock="nominal").init(costs)
    assert costs.probes == []


def test_states_are_values() -> None:
    """Equal rounds lead to equal, hashable states: what exact enumeration merges."""
    first, second = (simulation(options={"refresh": True}) for _ in range(2))
    first.run(30)
    second.run(30)
    assert first.state == second.state
    assert hash(first.state) == hash(second.state)
    before = first.state
    first.run(1)
    assert first.state != before
    assert before == second.state


def test_an_empty_tree_is_cut_to_nothing() -> None:
    run = simulation()
    assert run.controller.choose(TokenTree.root(0), run.ctx(), run.state) == 0
    off = simulation(acceptance=0.0)
    off.run(30)
    assert not off.state.request.speculation.on
    assert off.controller.choose(TokenTree.root(0), off.ctx(), off.state) == 0


def test_acceptance_learns_the_share_of_the_promise_that_is_kept() -> None:
    for share in (1.0, 0.5, 0.1):
        acceptance, factors = AcceptanceEstimate(), []
        for stats in Simulation(Fixed(FixedOptions(nodes=8)), None, acceptance=share).run(400):
            acceptance = acceptance.learn(stats.tree, stats.verdict)
            factors.append([math.exp(factor) for factor in acceptance.log_factors(2)])
        first, second = (statistics.mean(column) for column in zip(*factors[50:], strict=True))
        # A tenth of it is the prior's.
        assert first == pytest.approx(share, abs=0.1)
        assert second == pytest.approx(share, abs=0.2)


def test_acceptance_forgets_within_a_hundred_rounds() -> None:
    run = Simulation(Fixed(FixedOptions(nodes=8)), None, acceptance=1.0)
    acceptance = AcceptanceEstimate()
    for share in (1.0, 0.0):
        run.acceptance = share
        for stats in run.run(100):
            acceptance = acceptance.learn(stats.tree, stats.verdict)
    # Counted evenly it would be about a half; what is left of it is the prior's.
    assert math.exp(acceptance.log_factors(1)[0]) < 0.3


def test_a_trial_trusts_the_drafter_as_a_new_request_does() -> None:
    run = simulation(draft=0.0)
    run.run(30)
    tree, ctx, machine = tree_of(40), run.ctx(), run.state.machine
    distrust = AcceptanceEstimate((0.0,), (30.0,))

    def chosen(switch: SpeculationState) -> int:
        return run.controller.choose(
            tree, ctx, ControllerState(machine, RequestState(distrust, switch))
        )

    fresh = run.controller.choose(tree, ctx, ControllerState(machine, RequestState()))
    assert chosen(SpeculationState(on=False)) == fresh
    # Negative control: speculation that is on believes what it has learnt.
    assert chosen(SpeculationState()) < fresh


def test_a_trial_verifies_a_node_even_where_none_seems_to_pay() -> None:
    def dear(tokens: int, context: int) -> float:
        return 0.001 if tokens == 1 else 0.1 * tokens

    run = simulation(dear)
    tree, ctx, machine = tree_of(40), run.ctx(), run.machine
    budgets = [
        run.controller.choose(
            tree, ctx, ControllerState(machine, RequestState(speculation=SpeculationState(on=on)))
        )
        for on in (False, True)
    ]
    assert budgets == [1, 0]


def test_corrected_scores_never_increase_along_a_path() -> None:
    tree = tree_of(60, best=0.9)
    eager = AcceptanceEstimate((20.0, 20.0), (8.0, 8.0))
    assert max(eager.log_factors(3)) > 0
    curve = np.array(eager.expected_tokens(tree))
    gains = np.diff(curve, prepend=0.0)
    assert all(
        gains[node] <= gains[parent] + 1e-12
        for node, parent in enumerate(tree.parent_list)
        if parent >= 0
    )
    # With nothing learnt it is the drafter's own expected tokens, but for the prior's distrust.
    own = tree.expected_tokens().numpy()
    assert (np.array(AcceptanceEstimate().expected_tokens(tree)) <= own + 1e-12).all()


@pytest.mark.timing
def test_a_decision_takes_less_than_a_tenth_of_a_millisecond() -> None:
    run = simulation()
    run.run(50)
    tree, ctx = tree_of(64), run.ctx()

    def fastest(decide) -> float:
        times = []
        for _ in range(200):
            start = time.perf_counter()
            decide()
            times.append(time.perf_counter() - start)
        return min(times)

    assert fastest(lambda: run.controller.choose(tree, ctx, run.state)) < 1e-4
    assert fastest(lambda: run.controller.before_draft(ctx, run.state)) < 5e-5
    assert fastest(lambda: run.controller.observe(run.history[-1], run.state)) < 2e-4


def test_a_state_given_by_hand_decides_alone() -> None:
    """Pure: what a controller decided before changes nothing."""
    used = simulation(acceptance=0.1)
    used.run(100)
    fresh = ControllerState(used.machine, used.controller.open())
    first = simulation()
    tree, ctx = tree_of(64), first.ctx()
    assert used.controller.choose(tree, ctx, fresh) == first.controller.choose(
        tree, ctx, first.state
    )


def test_a_long_plain_phase_does_not_make_one_token_dear() -> None:
    """Times have spikes. Rounds of one size alone say how fast the machine is, and nothing of how
    that size differs from others."""
    run = simulation()
    run.run(30)
    known = run.state.machine
    known = evolve(known, corrections=evolve(known.corrections, ratios=()))
    before = float(known.forward(1, 64) / known.forward(16, 64))
    rng = random.Random(0)
    for _ in range(400):
        spike = 1.0 + 0.02 * rng.random() + (0.4 if rng.random() < 0.3 else 0.0)
        timings = Timings(verify=spike * two_roofs(1, 64), other=3e-4)
        known = known.learn(timings, 0, 64, False, True)
    assert float(known.forward(1, 64) / known.forward(16, 64)) == pytest.approx(before, rel=0.02)
    # Negative control: beside rounds of other sizes it is learnt that one token is dearer.
    for n in range(60):
        nodes = (0, 15, 16)[n % 3]
        timings = Timings(
            draft=1e-3, verify=two_roofs(nodes + 1, 64) * (1.2 if nodes == 0 else 1.0)
        )
        known = known.learn(timings, nodes, 64, nodes > 0, True)
    assert float(known.forward(1, 64) / known.forward(16, 64)) > 1.1 * before


def test_a_drafter_that_was_given_up_again_and_again_starts_on_trial() -> None:
    roofline = controller()
    machine = roofline.init(Costs(two_roofs))

    def request(acceptance: float) -> list:
        nonlocal machine
        run = Simulation(roofline, machine, two_roofs, 0.004, acceptance=acceptance)
        history = run.run(40)
        machine = run.state.machine
        return [stats for stats in history if stats.drafted]

    first, second, third = (request(0.0) for _ in range(3))
    assert len(third) < len(second) == len(first)
    assert max(stats.grown for stats in third) <= 8 < max(stats.grown for stats in second)
    # A good drafter proves itself in the trial, and the next request begins as the first did.
    assert len(request(1.0)) == 40
    assert request(1.0)[0].grown > 8


def test_budgets_that_a_seed_fixes_do_not_depend_on_requests_before() -> None:
    roofline = Roofline(RooflineOptions(clock="nominal"))
    machine = roofline.init(Costs(two_roofs))
    for _ in range(4):
        run = Simulation(roofline, machine, two_roofs, acceptance=0.0)
        run.run(40)
        assert run.state.machine == machine


def test_a_drafter_that_promises_far_too_little_is_given_half_the_rounds() -> None:
    """Nothing is accepted of either; only one could never pay for its pass."""

    def rounds(draft: float) -> int:
        history = simulation(acceptance=0.0, draft=draft).run(30)
        return [stats.drafted for stats in history].index(False)

    assert rounds(0.1) == MIN_ROUNDS // 2
    assert rounds(0.004) == MIN_ROUNDS  # negative control


def test_a_pass_is_priced_in_tokens_at_the_pace_of_the_request() -> None:
    run = simulation()
    run.run(30)
    timings = Timings(draft=1e-4, grow=1e-4, verify=two_roofs(9, 64), other=5e-4)
    machine = run.state.machine
    for _ in range(9):
        machine = machine.learn(timings, 8, 64, True, True, 0)
    state = evolve(run.state, machine=machine)
    text, seconds = state.request, run.draft + run.grow - 2e-4
    expected = seconds * text.tokens / text.seconds
    limits = run.controller.before_draft(run.ctx(), state)
    assert limits.pass_price == pytest.approx(expected, rel=1e-6)
    assert limits.pass_price > 0.1


def test_trees_are_hardly_larger_than_what_is_verified() -> None:
    run = simulation()
    run.run(30)
    largest = sorted(run.state.request.budgets)[-2]
    assert run.controller.before_draft(run.ctx(), run.state).nodes == int(1.25 * largest)


def test_prices_that_a_round_leaves_alone_stay_one_object() -> None:
    """They hold the curve that the next round reads."""
    run = simulation()
    run.run(30)
    prices = run.state.machine
    assert prices._curves
    context, _ = next(iter(prices._curves.items()))
    assert context == run.context


def test_a_drafter_that_pays_a_little_is_not_given_up_for_a_run_of_poor_rounds(monkeypatch) -> None:
    """Fixed trees of this drafter are a sixth faster than plain decoding."""

    def drafted() -> float:
        truth = {"best": 0.5, "acceptance": 0.4, "noise": 0.05}
        runs = [simulation(rng=random.Random(seed), **truth).run(128) for seed in range(8)]
        return statistics.mean(stats.drafted for run in runs for stats in run)

    assert drafted() > 0.9
    monkeypatch.setattr(speculation, "STANDARD_ERRORS", 0.0)
    assert drafted() < 0.7  # negative control: without room for doubt


def test_one_large_budget_of_long_ago_does_not_keep_trees_large() -> None:
    run = simulation(steep)
    run.run(3)
    run.state = evolve(run.state, request=evolve(run.state.request, budgets=(100, 100)))
    grown = [stats.grown for stats in run.run(cost_based.RECENT_BUDGETS + 1)]
    kept = cost_based.RECENT_BUDGETS - 1  # until the first of the two is forgotten
    assert grown[:kept] == [int(100 * cost_based.CAP_MARGIN)] * kept
    assert grown[-1] < 50


def test_one_large_budget_alone_does_not_make_trees_large() -> None:
    run = simulation(steep)
    run.run(3)
    usual = max(run.state.request.budgets)
    budgets = (*run.state.request.budgets, 100)
    run.state = evolve(run.state, request=evolve(run.state.request, budgets=budgets))
    cap = max(cost_based.MIN_CAP, int(cost_based.CAP_MARGIN * usual))
    assert run.controller.before_draft(run.ctx(), run.state).nodes == cap < 100


def test_after_being_given_up_in_a_row_a_failed_trial_is_followed_by_the_longest_pause() -> None:
    def pause(times_disabled: int) -> int:
        run = simulation(acceptance=0.0)
        run.state = evolve(
            run.state, machine=evolve(run.state.machine, times_disabled=times_disabled)
        )
        run.run(MIN_ROUNDS + 1)
        return run.state.request.speculation.pause

    assert pause(cost_based.MAX_DISABLED) == speculation.MAX_PAUSE
    assert pause(cost_based.MAX_DISABLED - 1) == speculation.MIN_PAUSE
