"""The exact distribution shows every known fault: negative controls of the property tests."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from attrs import frozen

from draftwood.core.draws import Draws
from draftwood.core.engine import Request
from draftwood.core.errors import TestingError, TreeError
from draftwood.core.interfaces import BudgetController, ControllerState
from draftwood.core.randomness import Randomness
from draftwood.core.tree import TokenTree
from draftwood.core.values import Limits
from draftwood.plugins.trees.options import SampledOptions
from draftwood.testing import ToyPipeline, assert_lossless, compare

from . import faults

CHAIN = ToyPipeline(tree="sampled-chain", verifier="ratio", seed=2)
IID = ToyPipeline(tree="sampled-iid", verifier="multi_round", seed=2)
WITHOUT = ToyPipeline(tree="sampled-without", verifier="multi_round", seed=2)
LOTTERY = ToyPipeline(tree="sampled-chain", verifier="ratio", seed=5)
FILTERED = ToyPipeline(
    tree="sampled-chain", verifier="ratio", temperature=0.5, filters="top_k", seed=2
)


def declaring(other: Callable[..., Any], options: SampledOptions) -> dict[str, Any]:
    return {"tree": faults.Declares(options, other)}


ONE, TWO = SampledOptions(), SampledOptions(widths=(2, 1))
PAIR = SampledOptions(widths=(2,))
LOTS = {"drafter": faults.lottery(5)}
UNTEMPERED = {**LOTS, **declaring(faults.untempered, ONE)}
MARGINALS = {**LOTS, **declaring(faults.marginals, ONE)}

FAULTS: dict[str, tuple[ToyPipeline, dict[str, Any], dict[str, Any]]] = {
    "bonus from the root": (ToyPipeline(seed=1), {}, {"verifier": faults.BonusFromTheRoot()}),
    "argmax acceptance": (ToyPipeline(seed=1), {}, {"verifier": faults.ArgmaxAcceptance()}),
    "first draft always accepted": (ToyPipeline(seed=1), {}, {"verifier": faults.AlwaysAccepts()}),
    "bonus from p": (CHAIN, {}, {"verifier": faults.BonusFromP()}),
    "raw softmax as q": (FILTERED, {}, declaring(faults.raw_softmax, ONE)),
    "raw softmax as q, siblings": (
        ToyPipeline(tree="sampled-without", verifier="traversal", temperature=0.5, seed=2),
        {},
        declaring(faults.raw_softmax, TWO),
    ),
    "softmax as q of argmax drafts": (
        CHAIN,
        {"drafter": faults.greedy_drafts(2)},
        {"drafter": faults.greedy_drafts(2), **declaring(faults.raw_softmax, ONE)},
    ),
    "most probable tokens declared as drawn": (
        WITHOUT,
        {},
        {"tree": faults.PretendsToHaveDrawn(faults.BEST_FOUR)},
    ),
    "q not renormalised": (WITHOUT, {}, {"tree": faults.NotRenormalised(TWO)}),
    "q not renormalised, traversal": (
        ToyPipeline(tree="sampled-without", verifier="traversal", seed=2),
        {},
        {"tree": faults.NotRenormalised(TWO)},
    ),
    "cut by sampled scores, chain": (
        ToyPipeline(tree="sampled-chain", verifier="ratio", seed=3),
        {},
        {"tree": faults.CutByScore(ONE)},
    ),
    "cut by sampled scores, siblings": (
        WITHOUT,
        {"tree": faults.Sampled(PAIR)},
        {"tree": faults.CutByScore(PAIR)},
    ),
    "merged duplicates": (
        IID,
        {"tree": faults.Sampled(faults.WIDE)},
        {"tree": faults.MergedDuplicates(faults.WIDE)},
    ),
    "potential kept": (
        ToyPipeline(tree="sampled-without", verifier="traversal", seed=2),
        {},
        {"verifier": faults.PotentialKept()},
    ),
    "another denominator": (
        ToyPipeline(tree="sampled-without", verifier="traversal", seed=2),
        {},
        {"verifier": faults.PotentialOfTheRest()},
    ),
    "untempered prior in the lottery": (
        LOTTERY,
        LOTS,
        {**LOTS, **declaring(faults.untempered, ONE)},
    ),
    "product of marginals as q": (LOTTERY, LOTS, MARGINALS),
    "product of marginals as q, sampled": (
        ToyPipeline("mixture", "sampled-chain", "ratio", seed=4),
        {},
        declaring(faults.marginals, ONE),
    ),
}
"""By name: (pipeline, parts of its right form, parts with the fault)."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_rejected_where_its_right_form_passes(fault: str) -> None:
    toy, right, wrong = FAULTS[fault]
    toy.check(**right)
    with pytest.raises(AssertionError, match="first wrong prefix"):
        toy.check(**wrong)
    # Far larger than rounding: the fault is visible in text.
    assert toy.compare(**wrong).max_error > 1e-3


@pytest.mark.parametrize("drafter", ["factorized", "mixture"])
@pytest.mark.parametrize("fault", [faults.ProcessorsAtTheBonus, faults.ProcessorsWithoutThePath])
def test_processors_in_the_wrong_place_are_rejected(fault: type, drafter: Any) -> None:
    toy = ToyPipeline(drafter, "best_first", "match", penalty=True, seed=1)
    toy.check()
    engine = faults.as_engine(fault, toy.engine())
    with pytest.raises(AssertionError, match="first wrong prefix"):
        assert_lossless(engine, (0, 1), 4, options=toy.options, processors=toy.processors)


@pytest.mark.parametrize("fault", [faults.SharedStream, faults.Reseeded])
def test_a_number_drawn_for_two_decisions_is_an_error(fault: type) -> None:
    """Its enumerated distribution would be right, since every draw is followed separately."""
    engine = CHAIN.engine()
    compare(engine, (0,), 4)
    with pytest.raises(TestingError, match="made twice"):
        compare(faults.as_engine(fault, engine), (0,), 4)


@frozen
class AlwaysZero(Randomness):
    """Every uniform number is 0, as generators may give; inclusive: the wrong comparison."""

    inclusive: bool = False

    def stream(self, name: str) -> "AlwaysZero":
        return self

    def categorical(self, probs: Any, position: int, draw: int = 0) -> int:
        return int((probs > 0).nonzero()[0])

    def accept(self, probability: float, position: int, draw: int = 0) -> bool:
        return probability >= 0.0 if self.inclusive else probability > 0.0


@pytest.mark.parametrize("inclusive", [False, True])
@pytest.mark.parametrize(
    ("rule", "tree"),
    [("ratio", "sampled-chain"), ("multi_round", "sampled-iid"), ("multi_round", "sampled-chain")],
)
def test_a_draft_of_probability_zero_is_rejected_at_u_zero(
    rule: str, tree: str, inclusive: bool
) -> None:
    """The comparison u <= p/q would accept it."""
    lowest = 0.0
    for seed in range(12):
        toy = ToyPipeline(tree=tree, verifier=rule, seed=seed)
        engine = toy.engine()
        run = engine.open(Request((0, 1), toy.options, AlwaysZero(inclusive)))
        for _ in range(4):
            before = len(run.ids)
            engine.step([run])
            for at in range(before, len(run.ids)):
                logits = engine.target.logits(tuple(run.ids[:at]))  # type: ignore[attr-defined]
                lowest = min(lowest, float(logits[run.ids[at]]))
    assert (lowest == float("-inf")) == inclusive


class CutsToTwo(BudgetController[None, None]):
    """Allows four nodes and keeps two."""

    def __init__(self) -> None:
        self.cuts = 0

    def init(self, costs: object) -> None:
        return None

    def open(self) -> None:
        return None

    def before_draft(self, ctx: object, state: object) -> Limits:
        return Limits(4)

    def choose(self, tree: TokenTree, ctx: object, state: ControllerState[None, None]) -> int:
        self.cuts += 1
        return min(2, tree.nodes)


def test_a_controller_cuts_deterministic_trees_only() -> None:
    controller = CutsToTwo()
    WITHOUT.check(controller=controller)
    assert controller.cuts == 0
    ToyPipeline(tree="static").check(controller=controller)
    assert controller.cuts > 0


def test_a_drawn_tree_refuses_to_be_cut() -> None:
    q = torch.tensor([[0.5, 0.5], [0.5, 0.5]])
    drawn = TokenTree.from_lists(
        [0, 1, 0], [-1, 0, 1], [0, 1, 2], [0.0, -0.7, -1.4], Draws.CHAIN, q
    )
    with pytest.raises(TreeError, match="cannot be cut"):
        drawn.cut(1)
