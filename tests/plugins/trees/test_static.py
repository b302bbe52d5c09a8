"""Static trees and chains: the requested shape, best nodes first."""

from collections import Counter

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
from draftwood.plugins.trees.chain import Chain
from draftwood.plugins.trees.options import BestFirstOptions, ChainOptions, StaticOptions
from draftwood.plugins.trees.static import TOPOLOGIES, Static

from .reference import PerLevel, always, brute_force, factorized, listed, paths, tree_distributions

ROOMY = Limits(1000)


def static(proposal: Proposal, limits: Limits = ROOMY, **options: object) -> TokenTree:
    policy = Static(StaticOptions(score_temperature=1.0, **options))  # type: ignore[arg-type]
    return policy.grow(0, proposal, limits, always, Seeded(0)).validate()


def chain(proposal: Proposal, limits: Limits = ROOMY, length: int | None = None) -> TokenTree:
    policy = Chain(ChainOptions(length, score_temperature=1.0))
    return policy.grow(0, proposal, limits, always, Seeded(0)).validate()


def dense(depth: int, size: int, seed: int = 0) -> FactorizedProposal:
    logits = torch.randn(depth, size, generator=torch.Generator().manual_seed(seed))
    return FactorizedProposal(logits.double(), Sampling(1.0), Vocabulary(size))


def rank_paths(tree: TokenTree, proposal: FactorizedProposal) -> set[tuple[int, ...]]:
    """The rank path of every draft node."""
    order = proposal.logits.argsort(dim=-1, descending=True, stable=True).tolist()
    return {
        tuple(order[depth].index(token) for depth, token in enumerate(path))
        for _, path in listed(tree)
    }


def test_eagle_has_its_25_nodes() -> None:
    shape = TOPOLOGIES["eagle"]
    assert len(set(shape)) == 25
    assert Counter(map(len, shape)) == {1: 4, 2: 8, 3: 8, 4: 3, 5: 2}
    StaticOptions(paths=shape)  # prefix-closed


def test_the_shape_is_grown_whole_whatever_the_distribution() -> None:
    for seed in range(5):
        proposal = dense(6, 9, seed)
        assert rank_paths(static(proposal), proposal) == set(TOPOLOGIES["eagle"])
    assert rank_paths(static(proposal, paths=((1,), (0,), (1, 2))), proposal) == {
        (0,),
        (1,),
        (1, 2),
    }


@given(tree_distributions(), st.integers(1, 30))
def test_a_complete_shape_is_the_best_first_tree(proposal: Proposal, nodes: int) -> None:
    """Cut by score, a shape that leaves nothing out has the best nodes of all."""
    complete: list[tuple[int, ...]] = []
    level: list[tuple[int, ...]] = [()]
    for _ in range(proposal.max_depth):
        level = [(*path, rank) for path in level for rank in range(5)]
        complete += level
    grown = static(proposal, Limits(nodes), paths=tuple(complete))
    best = BestFirst(BestFirstOptions(score_temperature=1.0)).grow(
        0, proposal, Limits(nodes), always, Seeded(0)
    )
    assert torch.equal(grown.log_rho, best.log_rho)
    narrow = static(proposal, Limits(nodes), paths=((0,),))
    assert narrow.nodes == 1  # negative control: the shape is what limits it


@given(tree_distributions(), st.integers(1, 30), st.integers(1, 5))
def test_prefixes_are_trees_and_expected_tokens_are_concave(
    proposal: Proposal, nodes: int, depth: int
) -> None:
    tree = static(proposal, Limits(nodes, depth))
    assert tree.nodes <= min(nodes, 25)
    assert max(tree.depth_list) <= min(depth, proposal.max_depth)
    assert bool((tree.log_rho.diff() <= 0).all())
    for size in range(tree.nodes + 1):
        tree.cut(size).validate()


@given(tree_distributions(), st.integers(1, 30))
def test_looking_up_and_expanding_give_one_tree(proposal: Proposal, nodes: int) -> None:
    for grow in (static, chain):
        looked_up = grow(proposal, Limits(nodes))
        expanded = grow(PerLevel(proposal, []), Limits(nodes))
        assert listed(looked_up) == listed(expanded)


@given(tree_distributions(), st.integers(1, 6))
def test_a_chain_follows_the_best_tokens(proposal: Proposal, length: int) -> None:
    tree = chain(proposal, length=length)
    assert tree.is_chain
    assert tree.nodes == min(length, proposal.max_depth)
    for depth, (score, path) in enumerate(listed(tree), 1):
        onward = [p for p in paths(proposal, depth) if p[1][:-1] == path[:-1]]
        best = max(s for s, p in onward if len(p) == depth)
        assert score == best
        assert path[-1] == min(p[-1] for s, p in onward if len(p) == depth and s == best)


def test_a_chain_ends_where_the_limits_do() -> None:
    proposal = dense(6, 9)
    assert [chain(proposal, Limits(n)).nodes for n in (0, 1, 4, 9)] == [0, 1, 4, 6]
    assert chain(proposal, Limits(9, 2)).nodes == 2
    assert chain(proposal, Limits(9), length=3).nodes == 3


def test_a_chain_asks_before_each_pass() -> None:
    advanced: list[int] = []
    proposal = PerLevel(dense(6, 9), advanced)
    policy = Chain(ChainOptions())
    tree = policy.grow(0, proposal, Limits(9), lambda tree: tree.nodes < 3, Seeded(0))
    assert tree.nodes == 3
    assert advanced == [1, 1]


def test_tokens_of_probability_zero_never_become_nodes() -> None:
    proposal = factorized([[0.0, 1.0, 0.0], [0.75, 0.0, 0.25]])
    assert [path for _, path in listed(static(proposal))] == [(1,), (1, 0), (1, 2)]
    assert listed(static(proposal)) == brute_force(proposal, 25, 2)


def test_a_greedy_request_still_has_a_tree() -> None:
    """At temperature 0 the drafter's own distribution is one token, and a tree of it only a
    chain."""
    proposal = FactorizedProposal(dense(5, 9).logits, Sampling(0.0), Vocabulary(9))
    policy = Static(StaticOptions())
    assert policy.grow(0, proposal, ROOMY, always, Seeded(0)).nodes == 25
    assert static(factorized([[0.0, 1.0]] * 5)).nodes == 5  # what one-hot distributions would give


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (((0,), (1, 0)), r"\[1, 0\] hangs from \[1\], which is not listed"),
        (((0,), ()), r"\[\] is not a rank path"),
        (((0,), (-1,)), r"\[-1\] is not a rank path"),
        (((0,), (0,)), r"\[0\] is listed twice"),
    ],
)
def test_a_shape_that_is_no_tree_is_refused(
    shape: tuple[tuple[int, ...], ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        StaticOptions(paths=shape)
