"""The output law of a whole pipeline equals its target's, to 1e-12, by enumeration."""

import itertools

import attrs
import pytest
from toys import DRAFTERS, Adversary, engine, factorized, spiky_target

from draftwood.core.engine import Engine
from draftwood.core.interfaces import NodeLaws
from draftwood.core.options import GenerationOptions
from draftwood.core.randomness import Randomness
from draftwood.core.values import TokenTree, Verdict
from draftwood.plugins.controllers.fixed import Fixed
from draftwood.plugins.controllers.options import FixedOptions, RooflineOptions
from draftwood.plugins.controllers.roofline import Roofline
from draftwood.plugins.trees.best_first import BestFirst
from draftwood.plugins.trees.chain import Chain
from draftwood.plugins.trees.options import BestFirstOptions, ChainOptions, StaticOptions
from draftwood.plugins.trees.static import Static
from draftwood.plugins.verifiers.match import Match
from draftwood.testing import ScriptedClock, assert_lossless, exact_law

HORIZON = 4  # deepest path (2) + 2: a second round starts from every kind of verdict
TREES = {
    "chain": lambda: Chain(ChainOptions()),
    "static": lambda: Static(StaticOptions(paths=((0,), (1,), (0, 0), (1, 0)))),
    "best_first": lambda: BestFirst(BestFirstOptions(max_nodes=4)),
    "levelled": lambda: BestFirst(BestFirstOptions(max_nodes=4, form="levelled")),
}
CONTROLLERS = {
    "fixed": lambda: Fixed(FixedOptions(nodes=3)),
    "roofline": lambda: Roofline(RooflineOptions()),
    "adversarial": Adversary,
}
SAMPLINGS = {
    "T=1": GenerationOptions(temperature=1.0),
    "T=0.5": GenerationOptions(temperature=0.5),
    "T=2,top_p=0.8": GenerationOptions(temperature=2.0, top_p=0.8),
    "greedy": GenerationOptions(temperature=0.0),
}


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("controller", CONTROLLERS)
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_match_keeps_the_targets_law(
    drafter: str, tree: str, controller: str, sampling: str
) -> None:
    pipeline = engine(DRAFTERS[drafter](1), TREES[tree](), CONTROLLERS[controller]())
    assert_lossless(pipeline, [0, 1], HORIZON, SAMPLINGS[sampling])


@pytest.mark.parametrize("seed", range(4))
def test_plain_decoding_keeps_the_targets_law(seed: int) -> None:
    assert_lossless(Engine(spiky_target(seed), Match()), [2], HORIZON, SAMPLINGS["T=1"])


class BonusFromTheRoot(Match):
    """Wrong: draws the bonus from the root's law whatever the path."""

    def judge(self, laws: NodeLaws, tree: TokenTree, rng: Randomness) -> Verdict:
        verdict = super().judge(laws, tree, rng)
        if len(verdict.accepted) == 1:
            return verdict
        return attrs.evolve(verdict, bonus=rng.stream("x").categorical(laws.law(0), 0, 0))


class ArgmaxAcceptance(Match):
    """Wrong above temperature 0: follows the target's argmax, and samples the bonus only."""

    def judge(self, laws: NodeLaws, tree: TokenTree, rng: Randomness) -> Verdict:
        accepted, node = [0], 0
        while True:
            best = int(laws.law(node).argmax())
            match = [c for c in tree.children[node] if tree.token_list[c] == best]
            if not match:
                token = rng.categorical(laws.law(node), laws.position(node))
                return Verdict(tuple(accepted), token)
            node = match[0]
            accepted.append(node)


class AlwaysAccepts(Match):
    """Wrong: takes the first child without asking the target."""

    def judge(self, laws: NodeLaws, tree: TokenTree, rng: Randomness) -> Verdict:
        if tree.nodes == 0:
            return super().judge(laws, tree, rng)
        token = rng.categorical(laws.law(1), laws.position(1))
        return Verdict((0, 1), token)


@pytest.mark.parametrize("wrong", [BonusFromTheRoot, ArgmaxAcceptance, AlwaysAccepts])
@pytest.mark.parametrize("tree", TREES)
def test_a_wrong_verifier_is_rejected(wrong: type[Match], tree: str) -> None:
    pipeline = engine(factorized(1), TREES[tree](), CONTROLLERS["fixed"](), verifier=wrong())
    with pytest.raises(AssertionError, match="first wrong prefix"):
        assert_lossless(pipeline, [0, 1], HORIZON, SAMPLINGS["T=1"])


class Watching(Match):
    """`match` that notes (budget, drafts accepted) of every judgement."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[int, int]] = set()

    def judge(self, laws: NodeLaws, tree: TokenTree, rng: Randomness) -> Verdict:
        verdict = super().judge(laws, tree, rng)
        self.seen.add((tree.nodes, len(verdict.accepted) - 1))
        return verdict


def test_the_enumerated_pipelines_do_speculate() -> None:
    """Exactness would be vacuous if drafts were never accepted, or never rejected."""
    watching = Watching()
    pipeline = engine(
        factorized(1), TREES["best_first"](), CONTROLLERS["fixed"](), verifier=watching
    )
    law = exact_law(pipeline, [0, 1], HORIZON, SAMPLINGS["T=1"])
    assert sum(law.values()) == pytest.approx(1.0, abs=1e-12)
    assert {accepted for budget, accepted in watching.seen if budget} >= {0, 1, 2}


def test_roofline_budgets_move_with_the_scripted_clock() -> None:
    """If the clock never moved a budget, the roofline cases would say no more than `fixed`."""
    budgets = set()
    for increments in itertools.product((1e-4, 3e-2), repeat=3):
        watching = Watching()
        pipeline = engine(
            factorized(1),
            TREES["best_first"](),
            CONTROLLERS["roofline"](),
            verifier=watching,
            clock=ScriptedClock(increments),
        )
        exact_law(pipeline, [0, 1], HORIZON, SAMPLINGS["T=1"])
        budgets |= {budget for budget, _ in watching.seen}
    assert len(budgets) > 2
