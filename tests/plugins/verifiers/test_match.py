"""`match`: each token is drawn from p with its own position's uniform, whatever the tree."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftwood.core.draws import Draws
from draftwood.core.errors import NonFiniteLogits
from draftwood.core.node_distributions import TargetDistributions
from draftwood.core.options import Sampling
from draftwood.core.randomness import Randomness, Seeded
from draftwood.core.tree import TokenTree
from draftwood.plugins.verifiers.match import Match
from draftwood.testing import Enumerating, outcomes

V = 4
TREE = TokenTree.from_lists([0, 1, 2, 3, 1, 2], [-1, 0, 0, 1, 1, 4], [0, 1, 1, 2, 2, 3], [0.0] * 6)
"""0 - 1 - 3
     |   1 - 2
     2"""
HISTORY = [3, 3, 0]


def distributions_of(
    logits: torch.Tensor, tree: TokenTree = TREE, temperature: float = 1.0
) -> TargetDistributions:
    return TargetDistributions(logits, tree, HISTORY, Sampling(temperature), (), 0)


def peaked(tokens: list[int]) -> torch.Tensor:
    """Logits with one token of probability 1 after each node."""
    logits = torch.full((len(tokens), V), -50.0, dtype=torch.float64)
    logits[range(len(tokens)), tokens] = 0.0
    return logits


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("tokens", "accepted", "bonus"),
    [
        ([3, 0, 0, 0, 0, 0], (0,), 3),  # no child has it
        ([2, 0, 1, 0, 0, 0], (0, 2), 1),  # the later sibling
        ([1, 1, 0, 0, 2, 3], (0, 1, 4, 5), 3),  # to a leaf, past an uncle
        ([1, 0, 0, 0, 0, 0], (0, 1), 0),
    ],
)
def test_the_path_follows_the_targets_tokens(
    temperature: float, tokens: list[int], accepted: tuple[int, ...], bonus: int
) -> None:
    verdict = Match().judge(
        distributions_of(peaked(tokens), temperature=temperature), TREE, Seeded(0)
    )
    assert (verdict.accepted, verdict.bonus) == (accepted, bonus)


@pytest.mark.covers("mixed-precision-draws")
@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_committed_tokens_are_drawn_with_the_noise_of_their_positions(
    seed: int, weights: int
) -> None:
    generator = torch.Generator().manual_seed(weights)
    logits = torch.randn(6, V, generator=generator, dtype=torch.float64)
    distributions, rng = distributions_of(logits), Seeded(seed)
    verdict = Match().judge(distributions, TREE, rng)
    drafts = [TREE.token_list[node] for node in verdict.accepted[1:]]
    for node, token in zip(verdict.accepted, [*drafts, verdict.bonus], strict=True):
        position = len(HISTORY) + TREE.depth_list[node]
        assert token == rng.categorical(logits[node].softmax(-1), position)


def test_the_distribution_of_a_committed_token_is_the_targets() -> None:
    """By enumeration: the token after the anchor has distribution p at the root."""
    logits = torch.randn(6, V, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    actual = torch.zeros(V, dtype=torch.float64)

    def judge(rng: Enumerating) -> int:
        verdict = Match().judge(distributions_of(logits), TREE, rng)
        return TREE.token_list[verdict.accepted[1]] if len(verdict.accepted) > 1 else verdict.bonus

    for probability, token, _ in outcomes(judge):
        actual[token] += probability
    assert torch.allclose(actual, logits[0].softmax(-1), atol=1e-12)


def test_only_distributions_on_the_path_are_read() -> None:
    read = []

    class RecordsReads(TargetDistributions):
        def probs(self, node: int) -> torch.Tensor:
            read.append(node)
            return super().probs(node)

    distributions = RecordsReads(peaked([2, 0, 1, 0, 0, 0]), TREE, HISTORY, Sampling(1.0), (), 0)
    verdict = Match().judge(distributions, TREE, Seeded(0))
    assert tuple(read) == verdict.accepted == (0, 2)


def test_greedy_decoding_draws_nothing() -> None:
    class NoDraws(Randomness):
        def stream(self, name: str) -> Randomness:
            return self

        def categorical(self, probs: torch.Tensor, position: int, draw: int = 0) -> int:
            raise AssertionError("a draw at temperature 0")

        def accept(self, probability: float, position: int, draw: int = 0) -> bool:
            raise AssertionError("a draw at temperature 0")

    distributions = distributions_of(peaked([1, 1, 0, 0, 2, 3]), temperature=0.0)
    assert Match().judge(distributions, TREE, NoDraws()).accepted == (0, 1, 4, 5)


@pytest.mark.covers("unverifiable-draws")
def test_a_repeated_sibling_does_not_change_the_verdict() -> None:
    tree = TokenTree.from_lists(
        [0, 1, 1], [-1, 0, 0], [0, 1, 1], [0.0] * 3, Draws.IID, torch.full((2, V), 0.25)
    )
    verdict = Match().judge(distributions_of(peaked([1, 2, 2]), tree), tree, Seeded(0))
    assert (verdict.accepted, verdict.bonus) == ((0, 1), 2)


@pytest.mark.covers("non-finite-logits")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [torch.nan, -torch.inf, torch.inf])
def test_a_non_finite_row_is_an_error_only_if_it_is_reached(temperature: float, bad: float) -> None:
    logits = peaked([1, 1, 0, 0, 2, 3])
    logits[2] = bad  # off the path
    assert (
        Match().judge(distributions_of(logits, temperature=temperature), TREE, Seeded(0)).bonus == 3
    )
    logits[4] = bad
    with pytest.raises(NonFiniteLogits, match=r"node 4 \(position 5\)"):
        Match().judge(distributions_of(logits, temperature=temperature), TREE, Seeded(0))
