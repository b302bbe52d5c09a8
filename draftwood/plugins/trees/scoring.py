"""What policies share that choose nodes by path scores: limits, and the scores' temperature."""

import sys
from abc import abstractmethod
from typing import NamedTuple

from draftwood.core.interfaces.tree import ShouldExpand, TreePolicy
from draftwood.core.proposals import Proposal
from draftwood.core.randomness import Randomness
from draftwood.core.tree import TokenTree
from draftwood.core.values import Limits


class Bounds(NamedTuple):
    """Limits of one tree, at least one node and one level; floors as in `Limits`."""

    nodes: int
    depth: int
    floors: tuple[float, ...]


class ScoredPolicy(TreePolicy):
    """Grows a deterministic tree by path scores, within its own and the controller's limits.

    Args:
        score_temperature: As in `scored`.
        nodes: Most draft nodes; None for the controller's limit alone.
        depth: Deepest level; None for the controller's and the proposal's limits alone.
    """

    def __init__(
        self, score_temperature: float | None, nodes: int | None = None, depth: int | None = None
    ) -> None:
        self._score_temperature = score_temperature
        self._nodes = sys.maxsize if nodes is None else nodes
        self._depth = sys.maxsize if depth is None else depth

    def grow(
        self,
        anchor: int,
        proposal: Proposal,
        limits: Limits,
        should_expand: ShouldExpand,
        rng: Randomness,
    ) -> TokenTree:
        nodes = min(self._nodes, limits.nodes)
        depth = min(self._depth, depth_limit(proposal, limits))
        if nodes < 1 or depth < 1:
            return TokenTree.root(anchor)
        bounds = Bounds(nodes, depth, limits.floors)
        proposal = scored(proposal, self._score_temperature)
        return self.grow_scored(anchor, proposal, bounds, should_expand)

    @abstractmethod
    def grow_scored(
        self, anchor: int, proposal: Proposal, bounds: Bounds, should_expand: ShouldExpand
    ) -> TokenTree:
        """The tree of a proposal that is at its score temperature."""


def scored(proposal: Proposal, score_temperature: float | None) -> Proposal:
    """A proposal, filters unchanged, at the temperature that its trees are scored with.

    Args:
        proposal: At the request's temperature.
        score_temperature: None for the request's temperature, but at least the proposal's
            `min_score_temperature`. `match` is exact at any.
    """
    requested = proposal.sampling.temperature
    if score_temperature is None:
        score_temperature = max(requested, proposal.min_score_temperature)
    return proposal if score_temperature == requested else proposal.tempered(score_temperature)


def depth_limit(proposal: Proposal, limits: Limits) -> int:
    """Deepest level that both the proposal and the controller allow."""
    if limits.depth is None:
        return proposal.max_depth
    return min(limits.depth, proposal.max_depth)
