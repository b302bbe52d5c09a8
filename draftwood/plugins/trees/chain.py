"""A chain: the best token, then the best token after it (Leviathan et al. 2023, greedy drafts)."""

from draftwood.core.interfaces.tree import ShouldExpand, TreePolicy
from draftwood.core.proposals import Proposal
from draftwood.core.randomness import Randomness
from draftwood.core.tree import TokenTree
from draftwood.core.values import Limits
from draftwood.plugins.trees.options import ChainOptions
from draftwood.plugins.trees.rank_paths import follow
from draftwood.plugins.trees.scoring import depth_limit, scored


class Chain(TreePolicy):
    """Follows the best token of each conditional."""

    def __init__(self, options: ChainOptions) -> None:
        self.options = options

    def grow(
        self,
        anchor: int,
        proposal: Proposal,
        limits: Limits,
        should_expand: ShouldExpand,
        rng: Randomness,
    ) -> TokenTree:
        """A path of at most `length` draft nodes. Equal tokens: the lowest id."""
        length = min(limits.nodes, depth_limit(proposal, limits))
        if self.options.length is not None:
            length = min(length, self.options.length)
        if length < 1:
            return TokenTree.root(anchor)
        proposal = scored(proposal, self.options.score_temperature)
        paths = [(0,) * n for n in range(1, length + 1)]
        return follow(anchor, proposal, paths, length, length, should_expand)
