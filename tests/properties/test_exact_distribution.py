"""The output distribution of a whole pipeline equals its target's, to 1e-12, by enumeration.

Every axis of the grid is full here: every triple of values with `match` and with `ratio`, every
pair with the other rules. The whole grid is `python -m draftwood.testing.grid`.
"""

import itertools

import pytest

from draftwood.core.config.compose import check_composition
from draftwood.core.config.pipeline import load_config
from draftwood.core.engine import Engine
from draftwood.core.errors import CompositionError
from draftwood.core.interfaces import NodeDistributions
from draftwood.core.options import GenerationOptions
from draftwood.core.randomness import Randomness
from draftwood.core.tree import TokenTree
from draftwood.core.values import Verdict
from draftwood.plugins.trees.best_first import BestFirst
from draftwood.plugins.trees.options import BestFirstOptions
from draftwood.plugins.verifiers.match import Match
from draftwood.testing import assert_lossless
from draftwood.testing.cells import (
    EVERY_TREE,
    FORMS,
    HORIZON,
    MIXTURE_TREES,
    PROMPT,
    VERIFIERS,
    Cell,
)
from draftwood.testing.covering import AXES, covering, grid
from draftwood.testing.toys import toy_target

MATRIX = """
                 match  ratio    multi_round  traversal
chain            exact  refused  refused      refused
static           exact  refused  refused      refused
dynamic          exact  refused  refused      refused
best_first       exact  refused  refused      refused
sampled-chain    exact  exact    exact        exact
sampled-iid      exact  refused  exact        exact
sampled-without  exact  refused  exact        exact
branches         exact  refused  refused      refused
lottery          exact  exact    exact        exact
"""
"""Trees by rules. `ratio` has a distribution for one drawn path; the others judge siblings, drawn
ones too, but a tree of best tokens was not drawn from any distribution that p/q could be taken
of."""

_HEADER, *_ROWS = (line.split() for line in MATRIX.strip().splitlines())
EXPECTED = {(tree, rule): said for tree, *row in _ROWS for rule, said in zip(_HEADER, row)}  # noqa: B905

SAMPLED = {
    "sampled-chain": {},
    "sampled-iid": {"widths": [2, 1], "replacement": True},
    "sampled-without": {"widths": [2, 1]},
}
GRID = grid()
CELLS = [
    cell
    for rule, strength in (("match", 3), ("ratio", 3), ("multi_round", 2), ("traversal", 2))
    for cell in covering(GRID, strength, lambda cell, rule=rule: cell.verifier == rule)
]


def name(cell: Cell) -> str:
    parts = [cell.drafter, cell.tree, cell.verifier, cell.controller, f"T{cell.temperature}"]
    return "-".join([*parts, cell.filters, *["penalty"] * cell.penalty])


@pytest.mark.covers("wrong-draft-distribution", "mixed-precision-draws")
@pytest.mark.parametrize("cell", CELLS, ids=name)
def test_the_distribution_is_the_targets(cell: Cell) -> None:
    cell.check()


def test_the_matrix_is_full() -> None:
    assert set(EXPECTED) == set(itertools.product(EVERY_TREE, VERIFIERS))
    for axis, values in AXES.items():
        for rule in ("match", "ratio"):
            of_rule = [cell for cell in GRID if cell.verifier == rule]
            possible = {getattr(cell, axis) for cell in of_rule}
            assert {getattr(cell, axis) for cell in CELLS if cell.verifier == rule} == possible
        assert {getattr(cell, axis) for cell in CELLS} == set(values)


@pytest.mark.covers("unverifiable-draws")
@pytest.mark.parametrize(("tree", "rule"), EXPECTED)
def test_what_has_no_distribution_is_refused_before_loading(tree: str, rule: str) -> None:
    ngram, dblast = {"use": "ngram"}, {"use": "dblast", "checkpoint": "some/drafter"}
    config = load_config(
        {
            "target": {"model": "some/model"},
            "drafter": dblast if tree in MIXTURE_TREES else ngram,
            "tree": {"use": tree.partition("-")[0], **SAMPLED.get(tree, {})},
            "controller": {"use": "fixed"},
            "verifier": {"use": rule},
        }
    )
    refused = EXPECTED[tree, rule] == "refused"
    assert Cell("mixture", tree, rule).refused == refused
    if refused:
        with pytest.raises(CompositionError, match="would change the output"):
            check_composition(config)
    else:
        check_composition(config)


@pytest.mark.parametrize("drafter", FORMS)
def test_the_levelled_form_keeps_the_distribution_too(drafter: str) -> None:
    policy = BestFirst(BestFirstOptions(max_nodes=4, form="by_level"))
    Cell(drafter, controller="adversarial", seed=7).check(tree=policy)  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", VERIFIERS)
@pytest.mark.parametrize("temperature", AXES["temperature"])
def test_points_keep_the_distribution_by_their_one_hot(rule: str, temperature: float) -> None:
    tree = "static" if rule == "match" else "sampled-chain"
    Cell("lookup", tree, rule, "adversarial", temperature, seed=3).check()


@pytest.mark.parametrize("seed", range(4))
def test_plain_decoding_keeps_the_distribution(seed: int) -> None:
    options = GenerationOptions(temperature=1.0)
    assert_lossless(Engine(toy_target(seed), Match()), PROMPT, HORIZON, options)


class Watching(Match):
    """`match` that notes (budget, drafts accepted) of every judgement."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[int, int]] = set()

    def judge(self, distributions: NodeDistributions, tree: TokenTree, rng: Randomness) -> Verdict:
        verdict = super().judge(distributions, tree, rng)
        self.seen.add((tree.nodes, len(verdict.accepted) - 1))
        return verdict


@pytest.mark.covers("wrong-draft-distribution")
@pytest.mark.parametrize("drafter", FORMS)
def test_the_enumerated_pipelines_do_speculate(drafter: str) -> None:
    """Exactness would be vacuous if drafts were never accepted, or never rejected."""
    watching = Watching()
    for seed in range(3):
        Cell(drafter, "best_first", seed=seed).check(verifier=watching)  # type: ignore[arg-type]
    assert {accepted for budget, accepted in watching.seen if budget} >= {0, 1, 2}


def test_roofline_budgets_move_with_the_scripted_clock() -> None:
    """If the clock never moved a budget, the roofline cells would say no more than `fixed`."""
    watching = Watching()
    for seed in range(6):
        Cell(tree="best_first", controller="roofline", seed=seed).check(verifier=watching)
    assert len({budget for budget, _ in watching.seen}) > 2
