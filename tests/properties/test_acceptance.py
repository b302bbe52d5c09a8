"""The exact accepted length of each rule equals its theory."""

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_distributions import TreeDistributions

from draftwood.core.interfaces import Verifier
from draftwood.core.options import Sampling
from draftwood.core.proposals import Proposal
from draftwood.core.values import Limits
from draftwood.plugins.verifiers.match import Match
from draftwood.plugins.verifiers.multi_round import MultiRound
from draftwood.plugins.verifiers.ratio import Ratio
from draftwood.plugins.verifiers.residual import ratio, residual
from draftwood.plugins.verifiers.traversal import Traversal
from draftwood.testing import Enumerating, outcomes, toy_proposal, toy_target
from draftwood.testing.toy_pipelines import FORMS, PROMPT, TREES
from draftwood.testing.toys import DEPTH, VOCAB

from . import faults

SEED, FORM = st.integers(0, 10_000), st.sampled_from(FORMS)
DRAWN = ["sampled-chain", "sampled-iid", "sampled-without"]


def proposal_of(form: Any, seed: int) -> Proposal:
    return toy_proposal(form, seed, Sampling(1.0))


def accepted_length(rule: Verifier, tree: str, form: Any, seed: int) -> float:
    """Expected number of drafts accepted in one round, over all its draws."""
    proposal, policy = proposal_of(form, seed), TREES[tree][1]()

    def experiment(rng: Enumerating) -> int:
        grown = policy.grow(PROMPT[-1], proposal, Limits(4), lambda tree: True, rng.stream("draft"))
        verdict = rule.judge(TreeDistributions(seed, grown), grown, rng.stream("verify"))
        return len(verdict.accepted) - 1

    return sum(p * length for p, length, _ in outcomes(experiment))


def chain_theory(form: Any, seed: int, *, block: bool) -> float:
    """Accepted length on a drawn chain: the sum over prefixes of q(prefix) times the probability
    that the prefix is accepted. Token by token that is the product of min(1, p/q) (arXiv
    2211.17192); for blocks it is p_i = min(1, p_{i-1} p/q) (arXiv 2403.10444)."""
    proposal, target, total = proposal_of(form, seed), toy_target(seed), 0.0
    for length in range(1, DEPTH + 1):
        for path in itertools.product(range(VOCAB), repeat=length):
            at, drawn, kept = proposal.root(), 1.0, 1.0
            for i, token in enumerate(path):
                q = float(proposal.probs(at)[0, token])
                if q == 0.0:
                    drawn = 0.0
                    break
                drawn *= q
                p = float(target.logits((*PROMPT, *path[:i]))[token].exp())
                kept = min(1.0, kept * p / q) if block else kept * min(1.0, p / q)
                if i + 1 < length:
                    at = proposal.advance(at, torch.tensor([0]), torch.tensor([token]))
            total += drawn * kept
    return total


@settings(max_examples=12)
@given(SEED, FORM)
def test_ratio_accepts_the_overlap_of_its_distributions(seed: int, form: Any) -> None:
    length = accepted_length(Ratio(), "sampled-chain", form, seed)
    assert length == pytest.approx(chain_theory(form, seed, block=False), abs=1e-12)


@settings(max_examples=12)
@given(SEED, FORM)
def test_traversal_of_a_chain_is_block_verification(seed: int, form: Any) -> None:
    length = accepted_length(Traversal(), "sampled-chain", form, seed)
    assert length == pytest.approx(chain_theory(form, seed, block=True), abs=1e-12)


@settings(max_examples=12)
@given(SEED, FORM, st.sampled_from(["chain", "static", "best_first"]))
def test_match_accepts_the_target_probability_of_the_tree(seed: int, form: Any, tree: str) -> None:
    grown = TREES[tree][1]().grow(
        PROMPT[-1], proposal_of(form, seed), Limits(4), lambda tree: True, Enumerating()
    )
    distributions, mass = TreeDistributions(seed, grown), [1.0] * len(grown)
    for node in range(1, len(grown)):
        parent = grown.parent_list[node]
        mass[node] = mass[parent] * float(distributions.probs(parent)[grown.token_list[node]])
    assert accepted_length(Match(), tree, form, seed) == pytest.approx(sum(mass[1:]), abs=1e-12)


@settings(max_examples=8)
@given(SEED, FORM, st.sampled_from(DRAWN))
def test_traversal_accepts_at_least_as_much_as_multi_round(seed: int, form: Any, tree: str) -> None:
    lower = accepted_length(MultiRound(), tree, form, seed)
    assert accepted_length(Traversal(), tree, form, seed) >= lower - 1e-12


def test_traversal_often_accepts_more_than_multi_round() -> None:
    """The two rules differ, so that the comparison above is not of a rule with itself."""
    pairs = [
        (accepted_length(Traversal(), tree, form, 1), accepted_length(MultiRound(), tree, form, 1))
        for tree in DRAWN
        for form in FORMS
    ]
    assert sum(more > less + 1e-3 for more, less in pairs) >= len(pairs) // 3


@settings(max_examples=8)
@given(SEED, FORM)
def test_multi_round_of_a_chain_is_ratio(seed: int, form: Any) -> None:
    expected = accepted_length(Ratio(), "sampled-chain", form, seed)
    length = accepted_length(MultiRound(), "sampled-chain", form, seed)
    assert length == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("wrong", [faults.ArgmaxAcceptance, faults.AlwaysAccepts])
def test_a_wrong_rule_accepts_another_share(wrong: type[Match]) -> None:
    length = accepted_length(wrong(), "best_first", "markov", 1)
    assert abs(length - accepted_length(Match(), "best_first", "markov", 1)) > 1e-2


def test_the_residual_of_equal_distributions_is_p() -> None:
    p = torch.tensor([0.25, 0.75])
    assert torch.equal(residual(p, p.clone()), p)
    assert ratio(torch.tensor([0.0, 1.0]), torch.tensor([0.5, 0.5]), 0) == 0.0
