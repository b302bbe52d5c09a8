"""Static trees: one shape for every round, as in EAGLE-1 (arXiv 2401.15077, figure of its tree).

A shape is a prefix-closed set of rank paths. EAGLE's has 25 nodes over five levels: broad where the
drafter is sure least often, then narrowing to the best continuations.
"""

from draftwood.core.interfaces.tree import ShouldExpand, TreePolicy
from draftwood.core.proposals import Proposal
from draftwood.core.randomness import Randomness
from draftwood.core.tree import TokenTree
from draftwood.core.values import Limits
from draftwood.plugins.trees.options import RankPath, StaticOptions
from draftwood.plugins.trees.rank_paths import follow
from draftwood.plugins.trees.scoring import depth_limit, scored


def _shape(*levels: str) -> tuple[RankPath, ...]:
    """Rank paths from one string a level: "00 01" is (0, 0) and (0, 1)."""
    return tuple(tuple(map(int, path)) for level in levels for path in level.split())


TOPOLOGIES = {
    "eagle": _shape(
        "0 1 2 3",
        "00 01 02 10 11 20 21 30",
        "000 001 002 010 011 020 021 100",
        "0000 0001 0002",
        "00000 00001",
    )
}


class Static(TreePolicy):
    """Grows the same shape every round, filled with the drafter's best tokens by rank."""

    def __init__(self, options: StaticOptions) -> None:
        self.options = options
        self.paths = options.paths or TOPOLOGIES[options.topology]

    def grow(
        self,
        anchor: int,
        proposal: Proposal,
        limits: Limits,
        should_expand: ShouldExpand,
        rng: Randomness,
    ) -> TokenTree:
        """The shape, or the `limits.nodes` best-scored nodes of it; growth order is by score."""
        depth = min(depth_limit(proposal, limits), max(map(len, self.paths)))
        if limits.nodes < 1 or depth < 1:
            return TokenTree.root(anchor)
        proposal = scored(proposal, self.options.score_temperature)
        return follow(anchor, proposal, self.paths, limits.nodes, depth, should_expand)
