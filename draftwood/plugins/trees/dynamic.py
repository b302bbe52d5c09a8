"""Dynamic trees: a beam of each level, then the best nodes of all levels (EAGLE-2 and EAGLE-3).

Li et al., arXiv 2406.16858, section 4. Where neither beam nor depth binds, it is the best-first
tree.
"""

from draftwood.core.interfaces.tree import ShouldExpand
from draftwood.core.proposals import Proposal
from draftwood.core.tree import TokenTree
from draftwood.plugins.trees.by_level import grow_by_level
from draftwood.plugins.trees.options import DynamicOptions
from draftwood.plugins.trees.scoring import Bounds, ScoredPolicy


class Dynamic(ScoredPolicy):
    """Grows a beam of `top_k` to `depth`, and keeps the best `total_tokens` of it."""

    def __init__(self, options: DynamicOptions) -> None:
        super().__init__(options.score_temperature, options.total_tokens, options.depth)
        self._beam = options.top_k

    def grow_scored(
        self, anchor: int, proposal: Proposal, bounds: Bounds, should_expand: ShouldExpand
    ) -> TokenTree:
        nodes, depth, _ = bounds
        return grow_by_level(anchor, proposal, nodes, depth, should_expand, self._beam)
