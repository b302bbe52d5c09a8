"""What a best-first tree is, by brute force, and distributions with many ties to try it on."""

import math
from collections.abc import Iterator

import torch
from attrs import field, frozen
from hypothesis import strategies as st

from draftwood.core.distributions import stable_topk
from draftwood.core.options import Sampling
from draftwood.core.proposals import (
    Children,
    FactorizedProposal,
    Frontier,
    LookupPaths,
    MarkovProposal,
    MixtureProposal,
    Proposal,
    Vocabulary,
)
from draftwood.core.tree import TokenTree


def always(tree: TokenTree) -> bool:
    return True


@frozen(eq=False)
class PerLevel(Proposal):
    """Another proposal behind a pass per level; counts the nodes that were advanced."""

    inner: Proposal
    advanced: list[int]
    pass_per_level = True

    @property
    def max_depth(self) -> int:  # type: ignore[override]
        return self.inner.max_depth

    @property
    def sampling(self) -> Sampling:  # type: ignore[override]
        return self.inner.sampling

    def root(self) -> Frontier:
        return self.inner.root()

    def expand(self, at: Frontier, k: int) -> Children:
        return self.inner.expand(at, k)

    def advance(self, at: Frontier, rows: torch.Tensor, tokens: torch.Tensor) -> Frontier:
        self.advanced.append(rows.shape[0])
        return self.inner.advance(at, rows, tokens)

    def probs(self, at: Frontier) -> torch.Tensor:
        return self.inner.probs(at)

    def tempered(self, temperature: float) -> "PerLevel":
        return PerLevel(self.inner.tempered(temperature), self.advanced)


@frozen(eq=False)
class Whole(PerLevel):
    """Another proposal whose children come from its whole distribution: the oracle of
    shortlists."""

    advanced: list[int] = field(factory=list)
    pass_per_level = False

    def expand(self, at: Frontier, k: int) -> Children:
        tokens, probs = stable_topk(self.inner.probs(at), k)
        return Children(tokens, probs.double().log())


def factorized(
    distributions: list[list[float]], ids: list[int] | None = None
) -> FactorizedProposal:
    """Distributions (D, V) as they are, in float64."""
    vocabulary = Vocabulary(len(distributions[0]), None if ids is None else torch.tensor(ids))
    return FactorizedProposal(
        torch.tensor(distributions, dtype=torch.float64).log(), Sampling(1.0), vocabulary
    )


def paths(proposal: Proposal, depth: int) -> Iterator[tuple[float, tuple[int, ...]]]:
    """Every path of at most `depth` tokens with its log score, summed from the root."""

    def below(at: Frontier, score: float, path: tuple[int, ...]) -> Iterator[tuple[float, tuple]]:
        if len(path) == depth:
            return
        probs = proposal.probs(at)[0].double().log()
        for token in range(probs.shape[0]):
            if probs[token] == -math.inf:
                continue
            child = (score + float(probs[token]), (*path, token))
            yield child
            if len(path) + 1 < proposal.max_depth:
                rows = torch.zeros(1, dtype=torch.long)
                yield from below(proposal.advance(at, rows, torch.tensor([token])), *child)

    yield from below(proposal.root(), 0.0, ())


def brute_force(proposal: Proposal, nodes: int, depth: int) -> list[tuple[float, tuple[int, ...]]]:
    """The `nodes` best paths in growth order, by sorting every path there is.

    The order among equal scores is (depth, growth index of the parent, token); a parent's index
    is known once the paths above are placed, so levels are placed one after the other.
    """
    every = list(paths(proposal, depth))
    place: dict[tuple[int, ...], int] = {(): 0}
    ranked: list[tuple[float, tuple[int, ...]]] = []
    for level in range(1, depth + 1):
        # Within a level only the order among parents matters.
        here = sorted(
            (entry for entry in every if len(entry[1]) == level),
            key=lambda entry: (-entry[0], place[entry[1][:-1]], entry[1][-1]),
        )
        place.update({path: i for i, (_, path) in enumerate(here)})
        ranked.extend(here)
    return sorted(ranked, key=lambda entry: (-entry[0], len(entry[1])))[:nodes]


def listed(tree: TokenTree) -> list[tuple[float, tuple[int, ...]]]:
    """A tree's draft nodes as (log score, path of tokens), in growth order."""
    tokens = tree.token_list
    return [
        (float(tree.log_rho[node]), tuple(tokens[i] for i in tree.path(node)[1:]))
        for node in range(1, len(tree))
    ]


@st.composite
def coarse_distribution(draw: st.DrawFn, size: int) -> list[float]:
    """A distribution in multiples of a power of two: sums are exact, ties and zeros are common."""
    weights = draw(st.lists(st.sampled_from([0, 0, 1, 1, 2, 4]), min_size=size, max_size=size))
    if not any(weights):
        weights[draw(st.integers(0, size - 1))] = 1
    return [weight / sum(weights) for weight in weights]


@st.composite
def factorized_distributions(draw: st.DrawFn, reduced: bool = True) -> FactorizedProposal:
    """Up to 4 positions over up to 5 tokens; sometimes a reduced vocabulary in odd order."""
    depth, size = draw(st.integers(1, 4)), draw(st.integers(2, 5))
    distributions = [draw(coarse_distribution(size)) for _ in range(depth)]
    proposal = factorized(distributions)
    if reduced and draw(st.booleans()):
        ids = torch.tensor(draw(st.permutations(range(size + 2)))[:size])
        return FactorizedProposal(proposal.logits, proposal.sampling, Vocabulary(size + 2, ids))
    return proposal


@st.composite
def markov_distributions(draw: st.DrawFn) -> MarkovProposal:
    """Up to 3 positions with up to 4 candidates each, in odd order."""
    depth, width = draw(st.integers(1, 3)), draw(st.integers(2, 4))
    candidates = [draw(st.permutations(range(6)))[:width] for _ in range(depth)]
    first = draw(coarse_distribution(width))
    pair = [[draw(coarse_distribution(width)) for _ in range(width)] for _ in range(depth - 1)]
    return MarkovProposal(
        torch.tensor(candidates),
        torch.tensor(first, dtype=torch.float64).log(),
        torch.tensor(pair, dtype=torch.float64).log().reshape(depth - 1, width, width),
        Sampling(1.0),
        6,
    )


@st.composite
def mixture_distributions(draw: st.DrawFn) -> MixtureProposal:
    """Up to 4 branches of up to 3 positions, some repeated, some never taken; a distribution of
    multiples of a power of two each, so that the mixture's sums are exact too."""
    branches, depth, size = (
        draw(st.integers(1, 4)),
        draw(st.integers(1, 3)),
        draw(st.integers(2, 5)),
    )
    weights = draw(coarse_distribution(branches))
    distributions = [
        [draw(coarse_distribution(size)) for _ in range(depth)] for _ in range(branches)
    ]
    if draw(st.booleans()):
        distributions[-1] = distributions[0]
    return MixtureProposal(
        torch.tensor(weights, dtype=torch.float64).log(),
        torch.tensor(distributions, dtype=torch.float64).log(),
        Sampling(1.0),
        Vocabulary(size),
    )


@st.composite
def point_paths(draw: st.DrawFn) -> LookupPaths:
    """Up to three continuations over three tokens, which often share a start."""
    some = st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple)
    return LookupPaths(tuple(draw(st.lists(some, min_size=1, max_size=3))), Sampling(), 3)


def tree_distributions() -> st.SearchStrategy[Proposal]:
    """Distributions of every form whose conditionals can be listed by `distribution`."""
    return st.one_of(factorized_distributions(), markov_distributions())
