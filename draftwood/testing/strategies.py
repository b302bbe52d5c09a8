"""Hypothesis strategies for distributions, proposals, trees, sampling settings and toy pipelines.

Needs the extra `draftwood[testing]`. The first choice of each strategy is the simplest. A failure
therefore shrinks to a factorized drafter, a chain, `match`, a fixed budget, temperature 1 and no
filter, where these fail.
"""

from collections.abc import Collection, Sequence

import torch
from hypothesis import strategies as st
from torch import Tensor

from draftwood.core.draws import Draws
from draftwood.core.options import Sampling
from draftwood.core.proposals import Proposal
from draftwood.core.randomness import Seeded
from draftwood.core.registry.plugin import ProposalForm
from draftwood.core.tree import TokenTree
from draftwood.core.values import Limits
from draftwood.testing.toy_pipelines import (
    CONTROLLERS,
    FILTERS,
    FORMS,
    TREES,
    VERIFIERS,
    ToyPipeline,
    trees_with,
)
from draftwood.testing.toys import DEPTH, VOCAB, toy_proposal

TEMPERATURES = (1.0, 0.5, 1.5, 0.0)
"""The simplest first, since failures shrink towards it."""


def distributions(size: int = VOCAB) -> st.SearchStrategy[Tensor]:
    """(size,) float64 distributions: flat, sharp, and with tokens of probability zero."""
    weights = st.one_of(
        st.just([1.0] * size),
        st.lists(st.floats(0.0, 1.0), min_size=size, max_size=size),
        st.permutations([1.0, *[0.0] * (size - 1)]),
        st.permutations([1.0, *[1e-6] * (size - 1)]),
    )
    return weights.filter(any).map(_normalised)


def disjoint_distributions(size: int = VOCAB) -> st.SearchStrategy[tuple[Tensor, Tensor]]:
    """Two distributions without a common token: every draft is rejected."""

    def split(order: Sequence[int], at: int) -> tuple[Tensor, Tensor]:
        pair = torch.zeros(2, size, dtype=torch.float64)
        pair[0, list(order[:at])], pair[1, list(order[at:])] = 1.0, 1.0
        return _normalised(pair[0].tolist()), _normalised(pair[1].tolist())

    return st.builds(split, st.permutations(range(size)), st.integers(1, size - 1))


def samplings() -> st.SearchStrategy[Sampling]:
    """Temperatures from greedy to 1.5, with and without each filter."""
    return st.builds(
        lambda temperature, filters: Sampling(temperature, **FILTERS[filters]),
        st.sampled_from(TEMPERATURES),
        st.sampled_from(tuple(FILTERS)),
    )


def proposals(
    forms: Collection[ProposalForm] = FORMS, depth: int = DEPTH, vocab: int = VOCAB
) -> st.SearchStrategy[Proposal]:
    """Proposals of these forms, `depth` levels deep."""
    return st.builds(
        toy_proposal,
        st.sampled_from(tuple(forms)),
        st.integers(0, 999),
        samplings(),
        st.just(depth),
        st.just(vocab),
    )


def limits(nodes: int = 6, depth: int = DEPTH + 1) -> st.SearchStrategy[Limits]:
    """What a controller may allow, down to no draft at all."""
    return st.builds(Limits, st.integers(0, nodes), st.none() | st.integers(1, depth))


def trees(draws: Collection[Draws] = tuple(Draws)) -> st.SearchStrategy[TokenTree]:
    """Trees grown by the bundled policies whose nodes are chosen in one of these ways."""

    def grow(name: str, proposal: Proposal, allowed: Limits, seed: int) -> TokenTree:
        return TREES[name][1]().grow(0, proposal, allowed, lambda tree: True, Seeded(seed))

    names = st.sampled_from(trees_with(draws))
    return st.builds(grow, names, proposals(), limits(nodes=4), st.integers(0, 999))


def toy_pipelines(
    drafters: Collection[ProposalForm] = FORMS,
    trees: Collection[str] = tuple(TREES),
    verifiers: Collection[str] = tuple(VERIFIERS),
    controllers: Collection[str] = ("fixed", "adversarial", "roofline"),
) -> st.SearchStrategy[ToyPipeline]:
    """Whole toy pipelines of these parts, where the parts fit."""
    pairs = [
        (tree, rule)
        for rule in verifiers
        for tree in trees
        if not ToyPipeline(tree=tree, verifier=rule).refused
    ]
    assert set(controllers) <= set(CONTROLLERS)
    return st.builds(
        lambda drafter, pair, *rest: ToyPipeline(drafter, pair[0], pair[1], *rest),
        st.sampled_from(tuple(drafters)),
        st.sampled_from(pairs),
        st.sampled_from(tuple(controllers)),
        st.sampled_from(TEMPERATURES),
        st.sampled_from(tuple(FILTERS)),
        st.booleans(),
        st.integers(0, 19),
    )


def _normalised(weights: Sequence[float]) -> Tensor:
    probs = torch.tensor(weights, dtype=torch.float64)
    return probs / probs.sum()
