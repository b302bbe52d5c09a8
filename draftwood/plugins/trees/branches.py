"""Trees over the K branches of a mixture: `branches` merges them, `lottery` draws one.

DBlast (arXiv 2608.05448) draws a branch from its tempered prior and decodes it greedily. What the
draw leaves unused costs nothing more: all K greedy branches, merged where they agree, are a tree.
"""

from itertools import accumulate

import torch
from torch import Tensor

from draftwood.core.draws import Draws
from draftwood.core.errors import TreeError
from draftwood.core.interfaces import ShouldExpand, TreePolicy
from draftwood.core.proposals import MixtureProposal, Proposal
from draftwood.core.randomness import Randomness
from draftwood.core.tree import TokenTree
from draftwood.core.values import Limits
from draftwood.plugins.trees.options import BranchesOptions, LotteryOptions
from draftwood.plugins.trees.scoring import depth_limit, scored


class Branches(TreePolicy):
    """The prefix tree of the greedy branches: deterministic, for `match`."""

    def __init__(self, options: BranchesOptions | None = None) -> None:
        self.options = options or BranchesOptions()

    def grow(
        self,
        anchor: int,
        proposal: Proposal,
        limits: Limits,
        should_expand: ShouldExpand,
        rng: Randomness,
    ) -> TokenTree:
        """At most `limits.nodes` draft nodes, best path scores of the mixture first.

        Branches that are never taken are left out. Raises TreeError for another form of
        distribution."""
        mixture = scored(_mixture(proposal, "branches"), self.options.score_temperature)
        assert isinstance(mixture, MixtureProposal)
        depth = depth_limit(mixture, limits)
        if limits.nodes < 1 or depth < 1:
            return TokenTree.root(anchor)
        paths = mixture.greedy()[mixture.weights() > 0, :depth]
        scores = mixture.path_scores(paths)
        return _merged(anchor, paths.tolist(), scores.tolist(), limits.nodes)


class Lottery(TreePolicy):
    """One greedy branch, drawn from the tempered prior: DBlast as published, for `ratio`.

    A branch is a whole path, but its tokens have a distribution each: given the drafts before it,
    token x is proposed with probability q~(x), the share of the prior that belongs to the branches
    with this path and x after it. That is the mixture's distribution at temperature 0. With q~ the
    rejection rules are exact, and accept no less than with the drawn branch's one-hot.
    """

    def __init__(self, options: LotteryOptions | None = None) -> None:
        self.options = options or LotteryOptions()

    def grow(
        self,
        anchor: int,
        proposal: Proposal,
        limits: Limits,
        should_expand: ShouldExpand,
        rng: Randomness,
    ) -> TokenTree:
        """A chain of at most `length` draft nodes; its length does not depend on the draw.

        Raises TreeError for a proposal that is no mixture.
        """
        mixture = _mixture(proposal, "lottery")
        length = min(limits.nodes, depth_limit(mixture, limits))
        if self.options.length is not None:
            length = min(length, self.options.length)
        if length < 1:
            return TokenTree.root(anchor)
        # Keyed by depth, as drawn trees are: one draw decides from the first level on.
        drawn = rng.categorical(mixture.weights(), 1)
        return lottery_chain(anchor, mixture, drawn, length)


def lottery_chain(anchor: int, mixture: MixtureProposal, drawn: int, length: int) -> TokenTree:
    """The chain of `length` draft nodes that branch `drawn` gives, with the distribution of
    each."""
    paths, weights = mixture.greedy()[:, :length], mixture.weights()
    chain = paths[drawn]
    # shares[z, d]: branch z has the chain's first d tokens.
    same = (paths == chain).long().cumprod(1).bool()
    shares = torch.cat([torch.ones_like(same[:, :1]), same[:, :-1]], 1)
    mass = weights[:, None] * shares  # K, length
    mass = mass / mass.sum(0)
    q = mass.new_zeros((length, mixture.vocabulary.size))
    q.scatter_add_(1, paths.T, mass.T)
    scores = (mass * same).sum(0).log().cumsum(0)
    return TokenTree.from_lists(
        [anchor, *chain.tolist()],
        list(range(-1, length)),
        list(range(length + 1)),
        [0.0, *scores.tolist()],
        Draws.CHAIN,
        q.to(_distribution_dtype(mixture.logits)),
    )


def _distribution_dtype(logits: Tensor) -> torch.dtype:
    """What `sampling_probs` would compute these logits' distributions in."""
    return torch.promote_types(logits.dtype, torch.float32)


def _merged(
    anchor: int, paths: list[list[int]], scores: list[list[float]], nodes: int
) -> TokenTree:
    """The prefix tree of `paths`, at most `nodes` draft nodes, best first, then less deep first."""
    found: dict[tuple[int, ...], float] = {}
    for path, row in zip(paths, scores, strict=True):
        # A token that is certain leaves the score as it was, but for rounding: never above it.
        for depth, score in enumerate(accumulate(row, min), 1):
            found.setdefault(tuple(path[:depth]), score)
    order = sorted(found, key=lambda prefix: (-found[prefix], len(prefix), prefix))[:nodes]
    index = {prefix: i for i, prefix in enumerate(order, 1)}
    index[()] = 0
    return TokenTree.from_lists(
        [anchor, *(prefix[-1] for prefix in order)],
        [-1, *(index[prefix[:-1]] for prefix in order)],
        [0, *(len(prefix) for prefix in order)],
        [0.0, *(found[prefix] for prefix in order)],
    )


def _mixture(proposal: Proposal, name: str) -> MixtureProposal:
    if not isinstance(proposal, MixtureProposal):
        raise TreeError(
            f"{name} needs the branches of a mixture, and {type(proposal).__name__} has none; "
            "use it with drafter dblast"
        )
    return proposal
