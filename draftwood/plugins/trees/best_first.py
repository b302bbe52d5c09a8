"""Best-first trees: the N nodes of highest path score (BASTION, arXiv 2605.29727, section 3).

rho(i) is the product of the drafter's conditionals along the path to node i, and A^(N) the sum of
the N highest: the expected tokens of a round. Scores never increase along a path, so the N highest
form a tree, each prefix of the growth order is the best tree of its size, and A^ is concave.

Two forms give the same tree, and each is the other's oracle. Both compute a score as the parent's
plus log q in float64, and order nodes by (-score, depth, parent, rank among its siblings).
"""

import math
from collections.abc import Sequence

from draftwood.core.errors import TreeError
from draftwood.core.interfaces.tree import ShouldExpand
from draftwood.core.proposals import Proposal, best_first_search
from draftwood.core.tree import TokenTree
from draftwood.plugins.trees.by_level import grow_by_level
from draftwood.plugins.trees.options import BestFirstOptions
from draftwood.plugins.trees.scoring import Bounds, ScoredPolicy

WIDTH = 16
"""Most likely tokens of each conditional in the first table; four times as many where a tree needs
more. Few trees do, and listing tokens is what a table costs."""


class BestFirst(ScoredPolicy):
    """Grows the best tree of `max_nodes` nodes, or of as many as the controller allows."""

    def __init__(self, options: BestFirstOptions) -> None:
        super().__init__(options.score_temperature, options.max_nodes)
        self._form = options.form

    def grow_scored(
        self, anchor: int, proposal: Proposal, bounds: Bounds, should_expand: ShouldExpand
    ) -> TokenTree:
        """The tree, with fewer nodes if the distribution has fewer.

        Raises:
            TreeError: The form is `search` and the proposal has no table.
        """
        form = self._form
        if form == "search" or (form == "auto" and proposal.device.type == "cpu"):
            tree = _search(anchor, proposal, *bounds)
            if tree is not None:
                return tree
            if form == "search":
                raise TreeError(
                    f"{type(proposal).__name__} has no table to search; use form: auto or by_level"
                )
        # The place of a level's nodes in the growth order is not known yet: use the lowest floor.
        nodes, depth, floors = bounds
        floor = min(floors[1:], default=-math.inf)
        return grow_by_level(anchor, proposal, nodes, depth, should_expand, floor=floor)


def _search(
    anchor: int, proposal: Proposal, nodes: int, depth: int, floors: Sequence[float]
) -> TokenTree | None:
    """The best tree from the narrowest table that shows it; None if the proposal has no table."""
    width = min(WIDTH, nodes)
    while (table := proposal.table(width)) is not None:
        tree = best_first_search(anchor, table, nodes, depth, floors, width)
        if tree is not None:
            return tree
        width = min(4 * width, nodes)
    return None
