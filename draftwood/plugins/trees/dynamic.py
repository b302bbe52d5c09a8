"""Dynamic trees: a beam of each level, then the best nodes of all levels (EAGLE-2 and EAGLE-3).

Li et al., arXiv 2406.16858, section 4: the `top_k` nodes of highest path score of a level are
expanded to their `top_k` best children each, level by level, and of all nodes seen the
`total_tokens` of highest score are verified. It is the best-first tree of the nodes that the beam
came by, and where neither beam nor depth binds, of all nodes.
"""

from draftwood.core.interfaces.tree import ShouldExpand, TreePolicy
from draftwood.core.proposals import Proposal
from draftwood.core.randomness import Randomness
from draftwood.core.tree import TokenTree
from draftwood.core.values import Limits
from draftwood.plugins.trees.by_level import grow_by_level
from draftwood.plugins.trees.options import DynamicOptions
from draftwood.plugins.trees.scoring import depth_limit, scored


class Dynamic(TreePolicy):
    """Grows a beam of `top_k` to `depth`, and keeps the best `total_tokens` of it."""

    def __init__(self, options: DynamicOptions) -> None:
        self.options = options

    def grow(
        self,
        anchor: int,
        proposal: Proposal,
        limits: Limits,
        should_expand: ShouldExpand,
        rng: Randomness,
    ) -> TokenTree:
        """At most min(total_tokens, limits.nodes) draft nodes, best scores first."""
        options = self.options
        nodes = min(options.total_tokens, limits.nodes)
        depth = min(options.depth, depth_limit(proposal, limits))
        if nodes < 1 or depth < 1:
            return TokenTree.root(anchor)
        proposal = scored(proposal, options.score_temperature)
        return grow_by_level(anchor, proposal, nodes, depth, should_expand, options.top_k)
