"""The exact distribution catches every known fault: negative controls of the tests beside this
one."""

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
from draftwood.testing import Cell, assert_lossless, compare

from . import faults

CHAIN = Cell(tree="sampled-chain", verifier="ratio", seed=2)
IID = Cell(tree="sampled-iid", verifier="multi_round", seed=2)
WITHOUT = Cell(tree="sampled-without", verifier="multi_round", seed=2)
LOTTERY = Cell(tree="sampled-chain", verifier="ratio", seed=5)
FILTERED = Cell(tree="sampled-chain", verifier="ratio", temperature=0.5, filters="top_k", seed=2)


def declares(other: Callable[..., Any], options: SampledOptions) -> dict[str, Any]:
    return {"tree": faults.Declares(options, other)}


ONE, TWO = SampledOptions(), SampledOptions(widths=(2, 1))
PAIR = SampledOptions(widths=(2,))
LOTS = {"drafter": faults.lottery(5)}
UNTEMPERED = {**LOTS, **declares(faults.untempered, ONE)}
MARGINALS = {**LOTS, **declares(faults.marginals, ONE)}

FAULTS: dict[str, tuple[Cell, dict[str, Any], dict[str, Any]]] = {
    "bonus from the root": (Cell(seed=1), {}, {"verifier": faults.BonusFromTheRoot()}),
    "argmax acceptance": (Cell(seed=1), {}, {"verifier": faults.ArgmaxAcceptance()}),
    "drafts accepted unasked": (Cell(seed=1), {}, {"verifier": faults.AlwaysAccepts()}),
    "bonus from p": (CHAIN, {}, {"verifier": faults.BonusFromP()}),
    "raw softmax as q": (FILTERED, {}, declares(faults.raw_softmax, ONE)),
    "raw softmax as q, siblings": (
        Cell(tree="sampled-without", verifier="traversal", temperature=0.5, seed=2),
        {},
        declares(faults.raw_softmax, TWO),
    ),
    "softmax as q of argmax drafts": (
        CHAIN,
        {"drafter": faults.greedy_drafts(2)},
        {"drafter": faults.greedy_drafts(2), **declares(faults.raw_softmax, ONE)},
    ),
    "best tokens declared as drawn": (
        WITHOUT,
        {},
        {"tree": faults.PretendsToHaveDrawn(faults.BEST_FOUR)},
    ),
    "q not renormalised": (WITHOUT, {}, {"tree": faults.NotRenormalised(TWO)}),
    "q not renormalised, traversal": (
        Cell(tree="sampled-without", verifier="traversal", seed=2),
        {},
        {"tree": faults.NotRenormalised(TWO)},
    ),
    "cut by sampled scores, chain": (
        Cell(tree="sampled-chain", verifier="ratio", seed=3),
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
        Cell(tree="sampled-without", verifier="traversal", seed=2),
        {},
        {"verifier": faults.PotentialKept()},
    ),
    "another denominator": (
        Cell(tree="sampled-without", verifier="traversal", seed=2),
        {},
        {"verifier": faults.PotentialOfTheRest()},
    ),
    "untempered prior in the lottery": (
        LOTTERY,
        LOTS,
        {**LOTS, **declares(faults.untempered, ONE)},
    ),
    "product of marginals as q": (LOTTERY, LOTS, MARGINALS),
    "product of marginals as q, sampled": (
        Cell("mixture", "sampled-chain", "ratio", seed=4),
        {},
        declares(faults.marginals, ONE),
    ),
}
"""name: (cell, what its right form has in place of the cell's parts, what the fault has)."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_rejected_where_its_right_form_passes(fault: str) -> None:
    cell, right, wrong = FAULTS[fault]
    cell.check(**right)
    with pytest.raises(AssertionError, match="first wrong prefix"):
        cell.check(**wrong)
    # Not a matter of rounding: what is caught here is visible in text.
    assert cell.compare(**wrong).max_error > 1e-3


@pytest.mark.parametrize("drafter", ["factorized", "mixture"])
@pytest.mark.parametrize("fault", [faults.ProcessorsAtTheBonus, faults.ProcessorsWithoutThePath])
def test_processors_in_the_wrong_place_are_rejected(fault: type, drafter: Any) -> None:
    cell = Cell(drafter, "best_first", "match", penalty=True, seed=1)
    cell.check()
    engine = faults.as_engine(fault, cell.engine())
    with pytest.raises(AssertionError, match="first wrong prefix"):
        assert_lossless(engine, (0, 1), 4, cell.options, cell.processors)


@pytest.mark.parametrize("fault", [faults.SharedStream, faults.Reseeded])
def test_a_number_drawn_for_two_decisions_is_an_error(fault: type) -> None:
    """Its distribution would look right here, where every draw is followed as if it were new."""
    engine = CHAIN.engine()
    compare(engine, (0,), 4)
    with pytest.raises(TestingError, match="made twice"):
        compare(faults.as_engine(fault, engine), (0,), 4)


@frozen
class Zero(Randomness):
    """Every uniform number is 0, which generators do give. inclusive: the wrong comparison."""

    inclusive: bool = False

    def stream(self, name: str) -> "Zero":
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
def test_an_impossible_draft_is_never_accepted_even_at_u_zero(
    rule: str, tree: str, inclusive: bool
) -> None:
    """With u <= p/q, at u = 0, a token of probability zero would be."""
    least = 0.0
    for seed in range(12):
        cell = Cell(tree=tree, verifier=rule, seed=seed)
        engine = cell.engine()
        run = engine.open(Request((0, 1), cell.options, Zero(inclusive)))
        for _ in range(4):
            before = len(run.ids)
            engine.step([run])
            for at in range(before, len(run.ids)):
                logits = engine.target.logits(tuple(run.ids[:at]))  # type: ignore[attr-defined]
                least = min(least, float(logits[run.ids[at]]))
    assert (least == float("-inf")) == inclusive


class Cuts(BudgetController[None, None]):
    """Allows four nodes and keeps two."""

    def __init__(self) -> None:
        self.asked = 0

    def init(self, costs: object) -> None:
        return None

    def open(self) -> None:
        return None

    def before_draft(self, ctx: object, state: object) -> Limits:
        return Limits(4)

    def choose(self, tree: TokenTree, ctx: object, state: ControllerState[None, None]) -> int:
        self.asked += 1
        return min(2, tree.nodes)


def test_a_controller_is_never_asked_to_cut_a_drawn_tree() -> None:
    cuts = Cuts()
    WITHOUT.check(controller=cuts)
    assert cuts.asked == 0
    Cell(tree="static").check(controller=cuts)
    assert cuts.asked > 0


def test_a_drawn_tree_refuses_to_be_cut() -> None:
    q = torch.tensor([[0.5, 0.5], [0.5, 0.5]])
    drawn = TokenTree.of([0, 1, 0], [-1, 0, 1], [0, 1, 2], [0.0, -0.7, -1.4], Draws.CHAIN, q)
    with pytest.raises(TreeError, match="cannot be cut"):
        drawn.cut(1)
