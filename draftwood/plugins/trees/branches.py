"""Trees over the K branches of a mixture: `branches` merges them, `lottery` draws one.

DBlast (arXiv 2608.05448) draws a branch from its tempered prior and decodes it greedily. The other
K - 1 branches cost nothing more: merged where they share a prefix, all of them are a tree.
"""

from itertools import accumulate

import torch

from draftwood.core.draws import Draws
from draftwood.core.errors import TreeError
from draftwood.core.interfaces import ShouldExpand, TreePolicy
from draftwood.core.proposals import MixtureProposal, Proposal
from draftwood.core.randomness import Randomness
from draftwood.core.tree import TokenTree
from draftwood.core.values import Limits
from draftwood.plugins.trees.options import BranchesOptions, LotteryOptions
from draftwood.plugins.trees.prefix_tree import prefix_tree
from draftwood.plugins.trees.scoring import Bounds, ScoredPolicy, depth_limit


class Branches(ScoredPolicy):
    """The prefix tree of the greedy branches: deterministic, for `match`."""

    def __init__(self, options: BranchesOptions | None = None) -> None:
        super().__init__(options.score_temperature if options else None)

    def grow_scored(
        self, anchor: int, proposal: Proposal, bounds: Bounds, should_expand: ShouldExpand
    ) -> TokenTree:
        """The branches by the mixture's path scores, without those that are never taken.

        Raises:
            TreeError: The proposal is no mixture.
        """
        mixture = _mixture(proposal, "branches")
        branches = mixture.greedy()[mixture.weights() > 0, : bounds.depth]
        log_rho: dict[tuple[int, ...], float] = {}
        for branch, scores in zip(
            branches.tolist(), mixture.path_scores(branches).tolist(), strict=True
        ):
            # Rounding may raise the score after a token that is certain: never above its parent's.
            for depth, score in enumerate(accumulate(scores, min), 1):
                log_rho.setdefault(tuple(branch[:depth]), score)
        paths = [(score, path, path[-1]) for path, score in log_rho.items()]
        return prefix_tree(anchor, paths, bounds.nodes)


class Lottery(TreePolicy):
    """One greedy branch, drawn from the tempered prior: DBlast as published, for `ratio`.

    Given the drafts before it, token x is proposed with probability q~(x): of the branches with
    this path, the share of the prior that belongs to those with x next. That is the mixture's
    distribution at temperature 0. With q~ the rejection rules are exact, and accept no less than
    with the drawn branch's one-hot.
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

        Raises:
            TreeError: The proposal is no mixture.
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
    """The chain of `length` draft nodes from branch `drawn`, with the distribution of each."""
    branches, weights = mixture.greedy()[:, :length], mixture.weights()
    chain = branches[drawn]
    # same[z, d]: branch z has the chain's first d + 1 tokens; shares[z, d]: its first d tokens.
    same = (branches == chain).long().cumprod(1).bool()
    shares = torch.cat([torch.ones_like(same[:, :1]), same[:, :-1]], 1)
    mass = weights[:, None] * shares  # K, length
    mass = mass / mass.sum(0)
    q = mass.new_zeros((length, mixture.vocabulary.size))
    q.scatter_add_(1, branches.T, mass.T)
    scores = (mass * same).sum(0).log().cumsum(0)
    return TokenTree.from_lists(
        [anchor, *chain.tolist()],
        list(range(-1, length)),
        list(range(length + 1)),
        [0.0, *scores.tolist()],
        Draws.CHAIN,
        q.to(torch.promote_types(mixture.logits.dtype, torch.float32)),  # as `sampling_probs` does
    )


def _mixture(proposal: Proposal, name: str) -> MixtureProposal:
    if not isinstance(proposal, MixtureProposal):
        raise TreeError(
            f"{name} needs the branches of a mixture, and {type(proposal).__name__} has none; "
            "use it with drafter dblast"
        )
    return proposal
