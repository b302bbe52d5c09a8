"""The veto between levels: it saves the passes that do not pay, and few that would have."""

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
TRUSTING = AcceptanceEstimate((50.0,) * 8, (50.0,) * 8)
ROOF = Roof((4e-3, 1e-4, 0.0, 0.0, 0.0), (5e-3, 0.0, 0.0, 0.0, 0.0))


def prices(one_pass: float) -> CostModel:
    """A forward of 5 ms or more, a drafter pass of `one_pass` seconds, half a millisecond else."""
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


def speed(tree: TokenTree, acceptance: AcceptanceEstimate, known: CostModel, passes: int) -> float:
    """The best tokens per second of a round with this tree."""
    sizes = np.arange(1.0, len(tree) + 1.0)
    seconds = known.overhead(CONTEXT, passes) + known.forward(sizes, CONTEXT)
    return float((np.array(acceptance.expected_tokens(tree)) / seconds).max())


@pytest.mark.parametrize("acceptance", [AcceptanceEstimate(), TRUSTING], ids=["new", "trusting"])
def test_trees_end_near_the_best_depth_in_hindsight(acceptance: AcceptanceEstimate) -> None:
    """Against every depth of the same distribution, at every price of a pass."""
    stopped, deepest, flat = [], [], []
    for seed, sharpness, one in itertools.product(range(4), (1.0, 4.0), (2e-4, 1e-3, 2e-3, 1e-2)):
        known, proposal = prices(one), probs(sharpness, seed)
        speeds = [speed(grown(proposal, d), acceptance, known, d) for d in range(1, 7)]

        def pays(tree: TokenTree, known: CostModel = known) -> bool:
            return next_level_pays(tree, acceptance, known, CONTEXT)

        depth = max(grown(proposal, 6, should_expand=pays).depth_list)
        stopped.append(speeds[depth - 1] / max(speeds))
        deepest.append(speeds[-1] / max(speeds))
        flat.append(speeds[0] / max(speeds))
    assert float(np.mean(stopped)) > 0.97
    assert min(stopped) > 0.85
    # Negative controls: neither going on always nor never does as well.
    assert float(np.mean(deepest)) < 0.9
    assert float(np.mean(flat)) < 0.96


def test_the_verdict_turns_once_as_passes_get_dearer() -> None:
    tree = grown(probs(4.0), 2)
    verdicts = [
        next_level_pays(tree, TRUSTING, prices(one), CONTEXT)
        for one in (1e-6, 1e-4, 1e-3, 5e-3, 1e-1)
    ]
    assert verdicts == sorted(verdicts, reverse=True)
    assert (verdicts[0], verdicts[-1]) == (True, False)


def test_a_text_that_rejects_deep_nodes_is_not_drafted_deep() -> None:
    tree = grown(probs(4.0), 2)
    known = prices(2e-3)
    refusing = AcceptanceEstimate((50.0, 50.0, 0.0), (50.0, 50.0, 50.0))
    assert next_level_pays(tree, TRUSTING, known, CONTEXT)
    assert not next_level_pays(tree, refusing, known, CONTEXT)


def test_a_given_pace_is_what_must_be_beaten() -> None:
    tree, known = grown(probs(4.0), 2), prices(1e-3)
    assert next_level_pays(tree, TRUSTING, known, CONTEXT, pace=1.0)
    assert not next_level_pays(tree, TRUSTING, known, CONTEXT, pace=1e6)


@pytest.mark.parametrize("objective", ["speed", "rate"])
def test_roofline_stops_growing_where_a_pass_is_dear(objective: str) -> None:
    controller = Roofline(RooflineOptions(objective=objective))  # type: ignore[arg-type]
    ctx = RoundContext(5, CONTEXT, 1000, 0)

    def depth(one_pass: float) -> int:
        state = ControllerState(prices(one_pass), evolve(RequestState(), acceptance=TRUSTING))
        tree = grown(
            probs(4.0), 6, should_expand=lambda growth: controller.should_expand(growth, ctx, state)
        )
        return max(tree.depth_list)

    depths = [depth(one_pass) for one_pass in (1e-5, 1e-3, 2e-3, 4e-3, 6e-3, 1.0)]
    assert depths == sorted(depths, reverse=True)
    assert (depths[0], depths[-1]) == (6, 1)
    assert any(1 < between < 6 for between in depths)


def test_a_level_is_priced_by_what_it_took_and_a_spike_is_not_for_ever() -> None:
    """In rounds of 1 ms drafts: levels of 2 ms, then none after one of a second."""
    known = CostModel(ROOF, stages=StageTimes(other=(5e-4,)))

    def learn(known: CostModel, grow: float, passes: int) -> CostModel:
        timings = Timings(draft=1e-3, grow=grow, verify=5e-3, other=5e-4)
        return known.learn(timings, 4, CONTEXT, True, True, passes)

    for _ in range(5):
        known = learn(known, 6e-3, 4)
    assert known.overhead(CONTEXT, 4) == pytest.approx(5e-4 + 1e-3 + 3 * 2e-3)
    spiked = learn(CostModel(ROOF, stages=StageTimes(other=(5e-4,))), 1.0, 2)
    tree = grown(probs(4.0), 1)
    assert not next_level_pays(tree, TRUSTING, spiked, CONTEXT)
    rounds = 0
    while not next_level_pays(tree, TRUSTING, spiked, CONTEXT):
        spiked, rounds = learn(spiked, 1e-4, 1), rounds + 1
        assert rounds < 500
    assert rounds > 9


def test_a_draft_without_a_pass_has_a_price_of_its_own() -> None:
    known = CostModel(ROOF, stages=StageTimes(other=(5e-4,)))
    for passes, draft in ((1, 4e-3), (0, 1e-4)) * 3:
        timings = Timings(draft=draft, grow=2e-4, verify=5e-3)
        known = known.learn(timings, 4, CONTEXT, True, True, passes)
    assert known.overhead(CONTEXT, 1) == pytest.approx(known.overhead(CONTEXT, 0) + 3.9e-3)
    assert known.pass_price(CONTEXT) == pytest.approx(3.9e-3)
