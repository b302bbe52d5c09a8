"""Dynamic trees: what the beam came by, the best of it first, and best-first without a beam."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftwood.core.options import Sampling
from draftwood.core.proposals import FactorizedProposal, Proposal, Vocabulary
from draftwood.core.randomness import Seeded
from draftwood.core.tree import TokenTree
from draftwood.core.values import Limits
from draftwood.plugins.trees.best_first import BestFirst
from draftwood.plugins.trees.dynamic import Dynamic
from draftwood.plugins.trees.options import BestFirstOptions, DynamicOptions
from draftwood.testing import AutoregressiveProposal
from draftwood.testing.suites import TreePolicySuite

from .reference import PerLevel, always, factorized, listed, point_paths, tree_distributions

ROOMY = Limits(1000)


class TestSuite(TreePolicySuite):
    plugin = "dynamic"
    options = {"top_k": 2, "depth": 2, "total_tokens": 4}  # noqa: RUF012


def dynamic(proposal: Proposal, limits: Limits = ROOMY, **options: int) -> TokenTree:
    policy = Dynamic(DynamicOptions(score_temperature=1.0, **options))
    return policy.grow(0, proposal, limits, always, Seeded(0)).validate()


def best_first(proposal: Proposal, nodes: int, depth: int) -> TokenTree:
    policy = BestFirst(BestFirstOptions(max_nodes=nodes, score_temperature=1.0))
    return policy.grow(0, proposal, Limits(nodes, depth), always, Seeded(0)).validate()


def autoregressive(seed: int, vocab: int = 6, depth: int = 4) -> AutoregressiveProposal:
    def logits(path: tuple[int, ...]) -> torch.Tensor:
        place = sum((token + 1) * (vocab + 1) ** i for i, token in enumerate(path))
        generator = torch.Generator().manual_seed(seed * 100_003 + place)
        return 2 * torch.randn(vocab, generator=generator, dtype=torch.float64)

    return AutoregressiveProposal(logits, depth, Sampling(1.0))


@given(st.one_of(tree_distributions(), point_paths()), st.integers(1, 40), st.integers(1, 4))
def test_without_a_binding_beam_it_is_the_best_first_tree(
    proposal: Proposal, nodes: int, depth: int
) -> None:
    ours = dynamic(proposal, top_k=200, depth=depth, total_tokens=nodes)
    assert listed(ours) == listed(best_first(proposal, nodes, depth))


def beam_by_hand(
    proposal: AutoregressiveProposal, top_k: int, depth: int, total: int
) -> list[tuple[float, tuple[int, ...]]]:
    """The papers' procedure on plain lists, for distributions without ties."""
    seen: list[tuple[float, tuple[int, ...]]] = []
    beam: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    for _ in range(depth):
        level = []
        for score, path in beam:
            probs = proposal.logits(path).log_softmax(-1)
            values, tokens = probs.topk(top_k)
            pairs = zip(values.tolist(), tokens.tolist(), strict=True)
            level += [(score + value, (*path, token)) for value, token in pairs]
        seen += level
        beam = sorted(level, reverse=True)[:top_k]
    return sorted(seen, key=lambda node: -node[0])[:total]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("top_k", "total"), [(1, 5), (2, 6), (3, 30), (4, 9)])
def test_it_is_the_papers_procedure(seed: int, top_k: int, total: int) -> None:
    proposal = autoregressive(seed)
    ours = listed(dynamic(proposal, top_k=top_k, depth=3, total_tokens=total))
    expected = beam_by_hand(proposal, top_k, 3, total)
    assert [path for _, path in ours] == [path for _, path in expected]
    for (found, _), (score, _) in zip(ours, expected, strict=True):
        assert math.isclose(found, score, abs_tol=1e-12)


def test_a_narrow_beam_loses_nodes_that_best_first_finds() -> None:
    """Negative control: the beam does bind, and what it costs is seen in the expected tokens."""
    wide, narrow = (
        sum(
            float(
                dynamic(autoregressive(seed), top_k=k, depth=4, total_tokens=20).expected_tokens()[
                    -1
                ]
            )
            for seed in range(4)
        )
        for k in (20, 2)
    )
    assert narrow < wide
    assert wide == pytest.approx(
        sum(float(best_first(autoregressive(s), 20, 4).expected_tokens()[-1]) for s in range(4))
    )


@given(tree_distributions(), st.integers(1, 3), st.integers(1, 12), st.integers(0, 8))
def test_every_prefix_is_a_tree_and_limits_hold(
    proposal: Proposal, top_k: int, total: int, nodes: int
) -> None:
    tree = dynamic(proposal, Limits(nodes, 2), top_k=top_k, depth=3, total_tokens=total)
    assert tree.nodes <= min(total, nodes)
    assert max(tree.depth_list) <= 2
    assert all(len(children) <= top_k for children in tree.children)
    for size in range(tree.nodes + 1):
        tree.cut(size).validate()
    assert bool((tree.log_rho.diff() <= 0).all())


def test_a_level_advances_the_beam_alone_and_asks_first() -> None:
    advanced: list[int] = []
    sizes: list[int] = []

    def twice(tree: TokenTree) -> bool:
        sizes.append(tree.validate().nodes)
        return len(sizes) < 3

    proposal = PerLevel(factorized([[0.4, 0.3, 0.2, 0.1]] * 5), advanced)
    policy = Dynamic(DynamicOptions(top_k=2, depth=5, total_tokens=100, score_temperature=1.0))
    tree = policy.grow(0, proposal, ROOMY, twice, Seeded(0))
    assert advanced == [2, 2]
    assert sizes == [2, 6, 10]
    assert tree.nodes == 10


def test_scores_come_from_a_warmer_distribution_than_a_cold_request() -> None:
    proposal = FactorizedProposal(torch.tensor([[3.0, 2.0, 0.0]]), Sampling(0.0), Vocabulary(3))
    tree = Dynamic(DynamicOptions()).grow(0, proposal, ROOMY, always, Seeded(0))
    expected = (proposal.logits[0] / 0.8).log_softmax(-1)
    torch.testing.assert_close(tree.log_rho[1:].float(), expected)
