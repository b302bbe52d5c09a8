"""Static trees: one shape for every round, as in EAGLE-1 (arXiv 2401.15077)."""

from draftwood.core.interfaces.tree import ShouldExpand
from draftwood.core.proposals import Proposal
from draftwood.core.tree import TokenTree
from draftwood.plugins.trees.options import RankPath, StaticOptions
from draftwood.plugins.trees.rank_paths import grow_rank_paths
from draftwood.plugins.trees.scoring import Bounds, ScoredPolicy


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


class Static(ScoredPolicy):
    """Fills the same shape with the drafter's best tokens by rank, and keeps the best-scored."""

    def __init__(self, options: StaticOptions) -> None:
        paths = sorted(options.paths or TOPOLOGIES[options.topology])
        depth = max(map(len, paths))
        super().__init__(options.score_temperature, depth=depth)
        self._levels = [[p for p in paths if len(p) == level] for level in range(1, depth + 1)]

    def grow_scored(
        self, anchor: int, proposal: Proposal, bounds: Bounds, should_expand: ShouldExpand
    ) -> TokenTree:
        levels = self._levels[: bounds.depth]
        return grow_rank_paths(anchor, proposal, levels, bounds.nodes, should_expand)
