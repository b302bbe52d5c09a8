"""Expected accepted drafts are what enumerating the rule gives."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood.core.errors import RequestError
from draftwood.core.interfaces import NodeDistributions
from draftwood.core.randomness import Seeded
from draftwood.core.tree import TokenTree
from draftwood.core.values import Limits
from draftwood.testing import Enumerating, outcomes, toy_proposal, toy_target
from draftwood.testing.cells import EVERY_TREE, MIXTURE_TREES, PROMPT, VERIFIERS, Cell
from studies.dblast.expected import RULES, expected_accepted


class Distributions(NodeDistributions):
    """One distribution per node of a tree, from a toy target."""

    greedy, round = False, 0

    def __init__(self, seed: int, tree: TokenTree) -> None:
        target = toy_target(seed)
        self.depths, self.size = tree.depth_list, len(tree)
        self.rows = [
            target.logits((*PROMPT, *(tree.token_list[i] for i in tree.path(node)[1:]))).exp()
            for node in range(len(tree))
        ]

    def probs(self, node: int) -> torch.Tensor:
        return self.rows[node]

    def argmax(self, node: int) -> int:
        return int(self.rows[node].argmax())

    def position(self, node: int) -> int:
        return 10 + self.depths[node]


CASES = [
    (form, tree, rule)
    for tree in EVERY_TREE
    for rule in VERIFIERS
    for form in (("mixture",) if tree in MIXTURE_TREES else ("factorized", "mixture"))
    if not Cell(form, tree, rule).refused  # type: ignore[arg-type]
]


def grown(form: Any, tree: str, seed: int, nodes: int = 6) -> TokenTree:
    proposal = toy_proposal(form, seed, Cell().options.sampling)
    policy = EVERY_TREE[tree][1]()
    return policy.grow(PROMPT[-1], proposal, Limits(nodes), lambda tree: True, Seeded(seed))


def enumerated(tree: TokenTree, rule: str, distributions: Distributions) -> float:
    def judge(rng: Enumerating) -> int:
        return len(VERIFIERS[rule][1]().judge(distributions, tree, rng).accepted) - 1

    return sum(chance * accepted for chance, accepted, _ in outcomes(judge))


def test_every_bundled_rule_has_an_expectation() -> None:
    assert set(RULES) == set(VERIFIERS)
    assert {rule: draws for rule, (draws, _) in RULES.items()} == {
        rule: draws for rule, (draws, _) in VERIFIERS.items()
    }


@pytest.mark.parametrize(("form", "tree", "rule"), CASES)
@settings(max_examples=6)
@given(seed=st.integers(0, 10_000))
def test_it_is_what_enumeration_gives(form: str, tree: str, rule: str, seed: int) -> None:
    one = grown(form, tree, seed)
    distributions = Distributions(seed, one)
    found = expected_accepted(one, distributions.probs, rule)
    assert found == pytest.approx(enumerated(one, rule, distributions), abs=1e-12)


def test_the_rules_differ_on_one_tree() -> None:
    """Else a table of one rule for all would pass."""
    one = grown("mixture", "sampled-without", 3)
    distributions = Distributions(3, one)
    assert (
        len(
            {
                expected_accepted(one, distributions.probs, r)
                for r in ("match", "multi_round", "traversal")
            }
        )
        == 3
    )


def test_a_tree_without_drafts_accepts_none() -> None:
    distributions = Distributions(0, TokenTree.root(1))
    assert [expected_accepted(TokenTree.root(1), distributions.probs, rule) for rule in RULES] == [
        0.0
    ] * 4


def test_only_nodes_that_can_be_reached_are_asked_for() -> None:
    """A distribution is a row of the vocabulary: most nodes' are never needed, leaves' never."""
    one = grown("factorized", "best_first", 1)
    asked: list[int] = []

    def probs(node: int) -> torch.Tensor:
        asked.append(node)
        return Distributions(1, one).probs(node)

    expected_accepted(one, probs, "match")
    assert all(one.children[node] for node in asked)


def test_what_has_no_distribution_is_refused() -> None:
    one = grown("factorized", "best_first", 1)
    with pytest.raises(RequestError, match="ratio has no distribution for deterministic"):
        expected_accepted(one, Distributions(1, one).probs, "ratio")
    with pytest.raises(RequestError, match="no rule 'luck'; choices: match"):
        expected_accepted(one, Distributions(1, one).probs, "luck")
