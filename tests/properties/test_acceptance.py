"""How much each rule accepts, computed exactly, is what its theory says."""

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood.core.interfaces import NodeDistributions, Verifier
from draftwood.core.options import Sampling
from draftwood.core.proposals import Proposal
from draftwood.core.tree import TokenTree
from draftwood.core.values import Limits
from draftwood.plugins.verifiers.match import Match
from draftwood.plugins.verifiers.multi_round import MultiRound
from draftwood.plugins.verifiers.ratio import Ratio
from draftwood.plugins.verifiers.residual import ratio, residual
from draftwood.plugins.verifiers.traversal import Traversal
from draftwood.testing import Enumerating, outcomes, toy_proposal, toy_target
from draftwood.testing.cells import DEPTH, FORMS, PROMPT, TREES
from draftwood.testing.toys import VOCAB

from . import faults

SEEDS, FORMS = st.integers(0, 10_000), st.sampled_from(FORMS)
DRAWN = ["sampled-chain", "sampled-iid", "sampled-without"]


class Distributions(NodeDistributions):
    """One distribution per node, for judging a tree by itself."""

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


def proposal_of(form: Any, seed: int) -> Proposal:
    return toy_proposal(form, seed, Sampling(1.0))


def accepted(rule: Verifier, tree: str, form: Any, seed: int) -> float:
    """Expected drafts accepted in one round, over its draws and its judgement."""
    proposal, policy = proposal_of(form, seed), TREES[tree][1]()

    def experiment(rng: Enumerating) -> int:
        grown = policy.grow(PROMPT[-1], proposal, Limits(4), lambda tree: True, rng.stream("draft"))
        verdict = rule.judge(Distributions(seed, grown), grown, rng.stream("verify"))
        return len(verdict.accepted) - 1

    return sum(p * length for p, length, _ in outcomes(experiment))


def chain_theory(form: Any, seed: int, *, block: bool) -> float:
    """Accepted length on a drawn chain: sum over prefixes of q(prefix) times the chance that it
    stands. Token by token that is the product of min(1, p/q) (2211.17192); for blocks it is
    p_i = min(1, p_{i-1} p/q) (2403.10444)."""
    proposal, target, total = proposal_of(form, seed), toy_target(seed), 0.0
    for length in range(1, DEPTH + 1):
        for path in itertools.product(range(VOCAB), repeat=length):
            at, drawn, stands = proposal.root(), 1.0, 1.0
            for i, token in enumerate(path):
                q = float(proposal.probs(at)[0, token])
                if q == 0.0:
                    drawn = 0.0
                    break
                drawn *= q
                p = float(target.logits((*PROMPT, *path[:i]))[token].exp())
                stands = min(1.0, stands * p / q) if block else stands * min(1.0, p / q)
                if i + 1 < length:
                    at = proposal.advance(at, torch.tensor([0]), torch.tensor([token]))
            total += drawn * stands
    return total


@settings(max_examples=12)
@given(SEEDS, FORMS)
def test_ratio_accepts_the_overlap_of_its_distributions(seed: int, form: Any) -> None:
    found = accepted(Ratio(), "sampled-chain", form, seed)
    assert found == pytest.approx(chain_theory(form, seed, block=False), abs=1e-12)


@settings(max_examples=12)
@given(SEEDS, FORMS)
def test_traversal_of_a_chain_is_block_verification(seed: int, form: Any) -> None:
    found = accepted(Traversal(), "sampled-chain", form, seed)
    assert found == pytest.approx(chain_theory(form, seed, block=True), abs=1e-12)


@settings(max_examples=12)
@given(SEEDS, FORMS, st.sampled_from(["chain", "static", "best_first"]))
def test_match_accepts_the_targets_mass_of_the_tree(seed: int, form: Any, tree: str) -> None:
    grown = TREES[tree][1]().grow(
        PROMPT[-1], proposal_of(form, seed), Limits(4), lambda tree: True, Enumerating()
    )
    distributions, mass = Distributions(seed, grown), [1.0] * len(grown)
    for node in range(1, len(grown)):
        parent = grown.parent_list[node]
        mass[node] = mass[parent] * float(distributions.probs(parent)[grown.token_list[node]])
    assert accepted(Match(), tree, form, seed) == pytest.approx(sum(mass[1:]), abs=1e-12)


@settings(max_examples=8)
@given(SEEDS, FORMS, st.sampled_from(DRAWN))
def test_traversal_accepts_at_least_as_much_as_multi_round(seed: int, form: Any, tree: str) -> None:
    lower = accepted(MultiRound(), tree, form, seed)
    assert accepted(Traversal(), tree, form, seed) >= lower - 1e-12


def test_traversal_often_accepts_more_than_multi_round() -> None:
    """Else the comparison above would be of a rule with itself."""
    pairs = [
        (accepted(Traversal(), tree, form, 1), accepted(MultiRound(), tree, form, 1))
        for tree in DRAWN
        for form in FORMS
    ]
    assert sum(more > less + 1e-3 for more, less in pairs) >= len(pairs) // 3


@settings(max_examples=8)
@given(SEEDS, FORMS)
def test_multi_round_of_a_chain_is_ratio(seed: int, form: Any) -> None:
    expected = accepted(Ratio(), "sampled-chain", form, seed)
    found = accepted(MultiRound(), "sampled-chain", form, seed)
    assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("wrong", [faults.ArgmaxAcceptance, faults.AlwaysAccepts])
def test_a_wrong_rule_accepts_another_share(wrong: type[Match]) -> None:
    found = accepted(wrong(), "best_first", "markov", 1)
    assert abs(found - accepted(Match(), "best_first", "markov", 1)) > 1e-2


def test_equal_distributions_leave_p_after_an_impossible_rejection() -> None:
    p = torch.tensor([0.25, 0.75])
    assert torch.equal(residual(p, p.clone()), p)
    assert ratio(torch.tensor([0.0, 1.0]), torch.tensor([0.5, 0.5]), 0) == 0.0
