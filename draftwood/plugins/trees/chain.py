"""A chain: the best token, then the best token after it (Leviathan et al. 2023, greedy drafts)."""

from draftwood.core.interfaces.tree import ShouldExpand
from draftwood.core.proposals import Proposal
from draftwood.core.tree import TokenTree
from draftwood.plugins.trees.options import ChainOptions
from draftwood.plugins.trees.rank_paths import grow_rank_paths
from draftwood.plugins.trees.scoring import Bounds, ScoredPolicy


class Chain(ScoredPolicy):
    """Follows the best token of each conditional; of equal tokens the lowest id."""

    def __init__(self, options: ChainOptions) -> None:
        super().__init__(options.score_temperature, nodes=options.length)

    def grow_scored(
        self, anchor: int, proposal: Proposal, bounds: Bounds, should_expand: ShouldExpand
    ) -> TokenTree:
        length = min(bounds.nodes, bounds.depth)
        levels = [[(0,) * depth] for depth in range(1, length + 1)]
        return grow_rank_paths(anchor, proposal, levels, length, should_expand)
