"""The decision between levels: it saves forward passes that do not pay, and few that would."""

import itertools
from functools import cache

import numpy as np
import pytest
import torch
from attrs import evolve

from draftwood.core.interfaces.controller import ControllerState
from draftwood.core.options import Sampling
from draftwood.core.randomness import Seeded
from draftwood.core.tree import TokenTree
from draftwood.core.values import Limits, RoundContext, Timings
from draftwood.plugins.controllers.options import RooflineOptions
from draftwood.plugins.controllers.roofline import Roofline
from draftwood.plugins.controllers.roofline.acceptance import AcceptanceEstimate
from draftwood.plugins.controllers.roofline.cost_based import RequestState
from draftwood.plugins.controllers.roofline.cost_model import CostModel
from draftwood.plugins.controllers.roofline.levels import next_level_pays
from draftwood.plugins.controllers.roofline.roof import Roof
from draftwood.plugins.controllers.roofline.stage_times import StageTimes
from draftwood.plugins.trees.best_first import BestFirst
from draftwood.plugins.trees.options import BestFirstOptions
from draftwood.testing import AutoregressiveProposal

CONTEXT = 100
ACCURATE = AcceptanceEstimate((50.0,) * 8, (50.0,) * 8)
ROOF = Roof((4e-3, 1e-4, 0.0, 0.0, 0.0), (5e-3, 0.0, 0.0, 0.0, 0.0))


def cost_model(one_pass: float) -> CostModel:
    """A forward takes 5 ms or more, a drafter forward `one_pass` seconds, the rest 0.5 ms."""
    return CostModel(ROOF, stages=StageTimes((one_pass,), grow=(0.0,), level=(1.0,), other=(5e-4,)))


def probs(
    sharpness: float, seed: int = 0, depth: int = 6, vocab: int = 5
) -> AutoregressiveProposal:
    @cache
    def logits(path: tuple[int, ...]) -> torch.Tensor:
        place = sum((token + 1) * (vocab + 1) ** i for i, token in enumerate(path))
        generator = torch.Generator().manual_seed(seed * 1_000_003 + place)
        return sharpness * torch.randn(vocab, generator=generator, dtype=torch.float64)

    return AutoregressiveProposal(logits, depth, Sampling(1.0))


def grown(
    proposal: AutoregressiveProposal, depth: int, nodes: int = 20, should_expand=lambda tree: True
):
    policy = BestFirst(BestFirstOptions(max_nodes=nodes, score_temperature=1.0))
    return policy.grow(0, proposal, Limits(nodes, depth), should_expand, Seeded(0))


def speed(tree: TokenTree, acceptance: AcceptanceEstimate, costs: CostModel, passes: int) -> float:
    """The best tokens per second of a round with this tree."""
    sizes = np.arange(1.0, len(tree) + 1.0)
    seconds = costs.overhead(CONTEXT, passes) + costs.forward(sizes, CONTEXT)
    return float((np.array(acceptance.expected_tokens(tree)) / seconds).max())


@pytest.mark.parametrize("acceptance", [AcceptanceEstimate(), ACCURATE], ids=["new", "accurate"])
def test_trees_reach_97_percent_of_the_speed_at_the_best_depth(
    acceptance: AcceptanceEstimate,
) -> None:
    """Compared with every depth of the same proposal, at several prices of a forward pass."""
    stopped, deepest, flat = [], [], []
    for seed, sharpness, one in itertools.product(range(4), (1.0, 4.0), (2e-4, 1e-3, 2e-3, 1e-2)):
        costs, proposal = cost_model(one), probs(sharpness, seed)
        speeds = [speed(grown(proposal, d), acceptance, costs, d) for d in range(1, 7)]

        def pays(tree: TokenTree, costs: CostModel = costs) -> bool:
            return next_level_pays(tree, acceptance, costs, CONTEXT)

        depth = max(grown(proposal, 6, should_expand=pays).depth_list)
        stopped.append(speeds[depth - 1] / max(speeds))
        deepest.append(speeds[-1] / max(speeds))
        flat.append(speeds[0] / max(speeds))
    assert float(np.mean(stopped)) > 0.97
    assert min(stopped) > 0.85
    # Negative controls: always and never expanding are both slower.
    assert float(np.mean(deepest)) < 0.9
    assert float(np.mean(flat)) < 0.96


def test_the_decision_changes_once_as_the_pass_price_rises() -> None:
    tree = grown(probs(4.0), 2)
    verdicts = [
        next_level_pays(tree, ACCURATE, cost_model(one), CONTEXT)
        for one in (1e-6, 1e-4, 1e-3, 5e-3, 1e-1)
    ]
    assert verdicts == sorted(verdicts, reverse=True)
    assert (verdicts[0], verdicts[-1]) == (True, False)


def test_low_acceptance_at_depth_prevents_a_deeper_level() -> None:
    tree = grown(probs(4.0), 2)
    costs = cost_model(2e-3)
    rejecting = AcceptanceEstimate((50.0, 50.0, 0.0), (50.0, 50.0, 50.0))
    assert next_level_pays(tree, ACCURATE, costs, CONTEXT)
    assert not next_level_pays(tree, rejecting, costs, CONTEXT)


def test_a_level_must_beat_the_given_pace() -> None:
    tree, costs = grown(probs(4.0), 2), cost_model(1e-3)
    assert next_level_pays(tree, ACCURATE, costs, CONTEXT, pace=1.0)
    assert not next_level_pays(tree, ACCURATE, costs, CONTEXT, pace=1e6)


@pytest.mark.parametrize("objective", ["speed", "rate"])
def test_trees_get_shallower_as_the_pass_price_rises(objective: str) -> None:
    controller = Roofline(RooflineOptions(objective=objective))  # type: ignore[arg-type]
    ctx = RoundContext(5, CONTEXT, 1000, 0)

    def depth(one_pass: float) -> int:
        state = ControllerState(cost_model(one_pass), evolve(RequestState(), acceptance=ACCURATE))
        tree = grown(
            probs(4.0), 6, should_expand=lambda growth: controller.should_expand(growth, ctx, state)
        )
        return max(tree.depth_list)

    depths = [depth(one_pass) for one_pass in (1e-5, 1e-3, 2e-3, 4e-3, 6e-3, 1.0)]
    assert depths == sorted(depths, reverse=True)
    assert (depths[0], depths[-1]) == (6, 1)
    assert any(1 < between < 6 for between in depths)


def test_the_level_price_follows_measurements_and_a_spike_decays() -> None:
    """Drafts take 1 ms: levels take 2 ms, then one level takes a second."""
    costs = CostModel(ROOF, stages=StageTimes(other=(5e-4,)))

    def learn(costs: CostModel, grow: float, passes: int) -> CostModel:
        timings = Timings(draft=1e-3, grow=grow, verify=5e-3, other=5e-4)
        return costs.learn(timings, 4, CONTEXT, True, True, passes)

    for _ in range(5):
        costs = learn(costs, 6e-3, 4)
    assert costs.overhead(CONTEXT, 4) == pytest.approx(5e-4 + 1e-3 + 3 * 2e-3)
    spiked = learn(CostModel(ROOF, stages=StageTimes(other=(5e-4,))), 1.0, 2)
    tree = grown(probs(4.0), 1)
    assert not next_level_pays(tree, ACCURATE, spiked, CONTEXT)
    rounds = 0
    while not next_level_pays(tree, ACCURATE, spiked, CONTEXT):
        spiked, rounds = learn(spiked, 1e-4, 1), rounds + 1
        assert rounds < 500
    assert rounds > 9


def test_lookup_drafts_have_a_separate_price() -> None:
    costs = CostModel(ROOF, stages=StageTimes(other=(5e-4,)))
    for passes, draft in ((1, 4e-3), (0, 1e-4)) * 3:
        timings = Timings(draft=draft, grow=2e-4, verify=5e-3)
        costs = costs.learn(timings, 4, CONTEXT, True, True, passes)
    assert costs.overhead(CONTEXT, 1) == pytest.approx(costs.overhead(CONTEXT, 0) + 3.9e-3)
    assert costs.pass_price(CONTEXT) == pytest.approx(3.9e-3)
