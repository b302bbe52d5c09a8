"""The output distribution of a whole pipeline equals its target's, to 1e-12, by enumeration.

Every axis of the grid has all its values here: every triple with `match` and with `ratio`, every
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
from draftwood.testing.covering import AXES, covering, grid
from draftwood.testing.toy_pipelines import (
    EVERY_TREE,
    FORMS,
    HORIZON,
    MIXTURE_TREES,
    PROMPT,
    VERIFIERS,
    ToyPipeline,
)
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
"""Trees by rules. `ratio` verifies one drawn path, the others siblings too. A deterministic tree
has no q for p/q, so that `match` alone verifies it."""

_HEADER, *_ROWS = (line.split() for line in MATRIX.strip().splitlines())
EXPECTED = {(tree, rule): entry for tree, *row in _ROWS for rule, entry in zip(_HEADER, row)}  # noqa: B905

SAMPLED = {
    "sampled-chain": {},
    "sampled-iid": {"widths": [2, 1], "replacement": True},
    "sampled-without": {"widths": [2, 1]},
}
GRID = grid()
COVERING = [
    toy
    for rule, strength in (("match", 3), ("ratio", 3), ("multi_round", 2), ("traversal", 2))
    for toy in covering(GRID, strength, lambda toy, rule=rule: toy.verifier == rule)
]


def name(toy: ToyPipeline) -> str:
    parts = [toy.drafter, toy.tree, toy.verifier, toy.controller, f"T{toy.temperature}"]
    return "-".join([*parts, toy.filters, *["penalty"] * toy.penalty])


@pytest.mark.covers("wrong-draft-distribution", "mixed-precision-draws")
@pytest.mark.parametrize("toy", COVERING, ids=name)
def test_the_distribution_is_the_targets(toy: ToyPipeline) -> None:
    toy.check()


def test_the_chosen_pipelines_have_every_value_of_every_axis() -> None:
    assert set(EXPECTED) == set(itertools.product(EVERY_TREE, VERIFIERS))
    for axis, values in AXES.items():
        for rule in ("match", "ratio"):
            of_rule = [toy for toy in GRID if toy.verifier == rule]
            possible = {getattr(toy, axis) for toy in of_rule}
            assert {getattr(toy, axis) for toy in COVERING if toy.verifier == rule} == possible
        assert {getattr(toy, axis) for toy in COVERING} == set(values)


@pytest.mark.covers("unverifiable-draws")
@pytest.mark.parametrize(("tree", "rule"), EXPECTED)
def test_a_rule_that_does_not_verify_the_draws_is_refused_before_loading(
    tree: str, rule: str
) -> None:
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
    assert ToyPipeline("mixture", tree, rule).refused == refused
    if refused:
        with pytest.raises(CompositionError, match="would change the output"):
            check_composition(config)
    else:
        check_composition(config)


@pytest.mark.parametrize("drafter", FORMS)
def test_trees_grown_by_level_keep_the_distribution(drafter: str) -> None:
    policy = BestFirst(BestFirstOptions(max_nodes=4, form="by_level"))
    ToyPipeline(drafter, controller="adversarial", seed=7).check(tree=policy)  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", VERIFIERS)
@pytest.mark.parametrize("temperature", AXES["temperature"])
def test_lookup_proposals_keep_the_distribution(rule: str, temperature: float) -> None:
    tree = "static" if rule == "match" else "sampled-chain"
    ToyPipeline("lookup", tree, rule, "adversarial", temperature, seed=3).check()


@pytest.mark.parametrize("seed", range(4))
def test_plain_decoding_keeps_the_distribution(seed: int) -> None:
    options = GenerationOptions(temperature=1.0)
    assert_lossless(Engine(toy_target(seed), Match()), PROMPT, HORIZON, options=options)


class RecordingMatch(Match):
    """`match` that records (budget, drafts accepted) of every verdict."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[int, int]] = set()

    def judge(self, distributions: NodeDistributions, tree: TokenTree, rng: Randomness) -> Verdict:
        verdict = super().judge(distributions, tree, rng)
        self.seen.add((tree.nodes, len(verdict.accepted) - 1))
        return verdict


@pytest.mark.covers("wrong-draft-distribution")
@pytest.mark.parametrize("drafter", FORMS)
def test_the_enumerated_pipelines_accept_and_reject_drafts(drafter: str) -> None:
    """Drafts are accepted and rejected: without both, an exact distribution shows nothing."""
    match = RecordingMatch()
    for seed in range(3):
        ToyPipeline(drafter, "best_first", seed=seed).check(verifier=match)  # type: ignore[arg-type]
    assert {accepted for budget, accepted in match.seen if budget} >= {0, 1, 2}


def test_roofline_budgets_change_with_the_scripted_clock() -> None:
    """With constant budgets the roofline pipelines would test no more than `fixed`."""
    match = RecordingMatch()
    for seed in range(6):
        ToyPipeline(tree="best_first", controller="roofline", seed=seed).check(verifier=match)
    assert len({budget for budget, _ in match.seen}) > 2
