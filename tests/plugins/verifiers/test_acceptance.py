"""The expected number of accepted drafts equals the enumeration of each rule's decisions."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_distributions import TreeDistributions

from draftwood.core.errors import RequestError
from draftwood.core.randomness import Seeded
from draftwood.core.registry.plugin import VerifierTraits
from draftwood.core.tree import TokenTree
from draftwood.core.values import Limits
from draftwood.plugins.verifiers.acceptance import EXPECTATIONS, expected_accepted
from draftwood.plugins.verifiers.host_rules import HOST_RULES
from draftwood.plugins.verifiers.register import draftwood_register_verifiers
from draftwood.plugins.verifiers.rules import RULE_DRAWS
from draftwood.testing import Enumerating, outcomes, toy_proposal
from draftwood.testing.toy_pipelines import (
    EVERY_TREE,
    MIXTURE_TREES,
    PROMPT,
    ToyPipeline,
)

CASES = [
    (form, tree, rule)
    for tree in EVERY_TREE
    for rule in HOST_RULES
    for form in (("mixture",) if tree in MIXTURE_TREES else ("factorized", "mixture"))
    if not ToyPipeline(form, tree, rule).refused  # type: ignore[arg-type]
]


def grown(form: Any, tree: str, seed: int, nodes: int = 6) -> TokenTree:
    proposal = toy_proposal(form, seed, ToyPipeline().options.sampling)
    policy = EVERY_TREE[tree][1]()
    return policy.grow(PROMPT[-1], proposal, Limits(nodes), lambda tree: True, Seeded(seed))


def enumerated(tree: TokenTree, rule: str, distributions: TreeDistributions) -> float:
    """Mean accepted drafts over every outcome of the verifier's draws."""

    def judge(rng: Enumerating) -> int:
        return len(HOST_RULES[rule]().judge(distributions, tree, rng).accepted) - 1

    return sum(probability * accepted for probability, accepted, _ in outcomes(judge))


def test_every_rule_has_a_verifier_an_expectation_and_a_plugin_with_its_draws() -> None:
    traits = {
        plugin.name: plugin.traits(plugin.options()) for plugin in draftwood_register_verifiers()
    }
    assert set(EXPECTATIONS) == set(HOST_RULES) == set(RULE_DRAWS)
    for rule, draws in RULE_DRAWS.items():
        assert isinstance(declared := traits[rule], VerifierTraits)
        assert (declared.draws, declared.seed_parity) == (draws, rule == "match")


@pytest.mark.parametrize(("form", "tree", "rule"), CASES)
@settings(max_examples=6)
@given(seed=st.integers(0, 10_000))
def test_expectation_equals_enumeration(form: str, tree: str, rule: str, seed: int) -> None:
    drafts = grown(form, tree, seed)
    distributions = TreeDistributions(seed, drafts)
    expectation = expected_accepted(drafts, distributions.probs, rule)
    assert expectation == pytest.approx(enumerated(drafts, rule, distributions), abs=1e-12)


def test_rules_accept_different_numbers_of_drafts_of_one_tree() -> None:
    """Negative control: one formula for all rules would fail here."""
    drafts = grown("mixture", "sampled-without", 3)
    probs = TreeDistributions(3, drafts).probs
    rules = ("match", "multi_round", "traversal")
    assert len({expected_accepted(drafts, probs, rule) for rule in rules}) == 3


@pytest.mark.parametrize("rule", RULE_DRAWS)
def test_a_tree_without_drafts_accepts_none(rule: str) -> None:
    root = TokenTree.root(1)
    assert expected_accepted(root, TreeDistributions(0, root).probs, rule) == 0.0


def test_probs_are_read_only_at_reachable_nodes_with_children() -> None:
    """Each is a row of the vocabulary, and most nodes' rows are not needed."""
    drafts = grown("factorized", "best_first", 1)
    distributions = TreeDistributions(1, drafts)
    read: list[int] = []

    def probs(node: int) -> torch.Tensor:
        read.append(node)
        return distributions.probs(node)

    expected_accepted(drafts, probs, "match")
    assert all(drafts.children[node] for node in read)


def test_unknown_rules_and_unverifiable_draws_are_refused() -> None:
    drafts = grown("factorized", "best_first", 1)
    probs = TreeDistributions(1, drafts).probs
    with pytest.raises(RequestError, match="ratio has no distribution for deterministic"):
        expected_accepted(drafts, probs, "ratio")
    with pytest.raises(RequestError, match="no rule 'luck'; choices: match"):
        expected_accepted(drafts, probs, "luck")
