"""Trees grown a level at a time, from tensors on the proposal's device."""

import math

import torch
from torch import Tensor

from draftwood.core import devices
from draftwood.core.interfaces.tree import ShouldExpand
from draftwood.core.proposals import Proposal
from draftwood.core.tree import TokenTree

FIRST_WIDTH = 8
"""Tokens of a branch that are examined first; doubled until they suffice."""


def grow_by_level(
    anchor: int,
    proposal: Proposal,
    nodes: int,
    depth: int,
    should_expand: ShouldExpand,
    beam: int | None = None,
    floor: float = -math.inf,
) -> TokenTree:
    """The best `nodes` of all levels up to `depth`, in growth order.

    Without a beam it is the best tree there is. It is first searched among a few tokens of each
    distribution, and is right if its last node scores higher than any token left out, since all
    descendants of such a token score lower still. On a GPU the tree is grown without
    synchronising, where the proposal allows it, and stays there.

    Args:
        anchor: Token of node 0.
        proposal: The distributions.
        nodes: Most draft nodes.
        depth: Deepest level.
        should_expand: Whether another level may cost a forward pass of the drafter.
        beam: Most nodes of a level that are expanded, and most children of each; None for `nodes`.
        floor: Where levels cost a forward pass, the log path score that a node other than the
            best must exceed to be kept and expanded.
    """
    if beam is None and _fixed_size(proposal):
        return _grown_without_sync(anchor, proposal, nodes, depth)
    if beam is None and not proposal.pass_per_level:
        width = max(FIRST_WIDTH, nodes // 4)
        while (shortlist := proposal.shortlisted(width)) is not proposal:
            levels = _grown(anchor, shortlist, nodes, depth, nodes, should_expand)
            unlisted_bound = float(levels.unlisted_bound)
            if unlisted_bound == -math.inf or float(levels.floor) > unlisted_bound:
                return levels.tree()
            width *= 2
    lowest = floor if proposal.pass_per_level else -math.inf
    return _grown(anchor, proposal, nodes, depth, beam or nodes, should_expand, lowest).tree()


def _grown(
    anchor: int,
    proposal: Proposal,
    nodes: int,
    depth: int,
    beam: int,
    should_expand: ShouldExpand,
    lowest: float = -math.inf,
) -> "_Levels":
    """Levels of nodes that may be among the `nodes` best so far; no other node is advanced.

    A later node that ties with the worst of them comes after it.
    """
    levels = _Levels(anchor, nodes, proposal.device)
    frontier = proposal.root()
    scores = levels.root_score
    for level in range(1, depth + 1):
        children = proposal.expand(frontier, min(beam, nodes))
        if children.unlisted_bound is not None:
            bound = (scores + children.unlisted_bound).max()
            levels.unlisted_bound = torch.maximum(levels.unlisted_bound, bound)
        width = children.tokens.shape[1]
        path_scores = (scores[:, None] + children.log_q.double()).flatten()
        kept = (path_scores > levels.floor.clamp(min=lowest)).nonzero().squeeze(1)
        if level == 1 and not len(kept):
            kept = path_scores.argmax(0, keepdim=True)
        order = kept[path_scores[kept].argsort(descending=True, stable=True)[:nodes]]
        rows, tokens, scores = order // width, children.tokens.flatten()[order], path_scores[order]
        levels.add(tokens, rows, level, scores)
        # Nor can a node below the new floor have a descendant above it: it is not advanced.
        alive = min(beam, int((scores > levels.floor.clamp(min=lowest)).sum()))
        if level == depth or alive == 0:
            break
        if proposal.pass_per_level and not should_expand(levels.tree()):
            break
        scores = scores[:alive]
        frontier = proposal.advance(frontier, rows[:alive], tokens[:alive])
    return levels


def _fixed_size(proposal: Proposal) -> bool:
    """Whether a tree's size is known without reading from the device: no filter excludes tokens.

    Nodes whose probability rounds to zero come last and bias no rule.
    """
    sampling = proposal.sampling
    filters = (sampling.top_k, sampling.top_p, sampling.min_p)
    return not (
        devices.reads_without_sync(proposal.device)
        or proposal.pass_per_level
        or sampling.greedy
        or filters != (None, None, None)
        or proposal.shortlisted(FIRST_WIDTH) is not proposal
    )


def _grown_without_sync(anchor: int, proposal: Proposal, nodes: int, depth: int) -> TokenTree:
    """The tree without reading from the device: nodes that `_grown` would drop rank last."""
    levels = _Levels(anchor, nodes, proposal.device)
    frontier = proposal.root()
    scores = levels.root_score
    for level in range(1, depth + 1):
        children = proposal.expand(frontier, nodes)
        path_scores = (scores[:, None] + children.log_q.double()).flatten()
        scores, order = path_scores.sort(descending=True, stable=True)
        scores, order = scores[:nodes], order[:nodes]
        rows = order // children.tokens.shape[1]
        tokens = children.tokens.flatten()[order]
        levels.add(tokens, rows, level, scores)
        if level < depth:
            frontier = proposal.advance(frontier, rows, tokens)
    return levels.tree()


class _Levels:
    """Candidates level by level, each level best first.

    `floor` is the score that a node of a deeper level must exceed to be among the `nodes` best,
    `unlisted_bound` a bound on the scores of all nodes that were not examined.
    """

    def __init__(self, anchor: int, nodes: int, device: torch.device) -> None:
        self.anchor, self.nodes = anchor, nodes
        self.root_score = torch.zeros(1, dtype=torch.float64, device=device)
        self.floor = self.unlisted_bound = torch.full_like(self.root_score[0], -torch.inf)
        self._first = 0  # index of the last level's first candidate; the anchor is 0
        self._size = 1
        self._columns: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []

    def add(self, tokens: Tensor, rows: Tensor, depth: int, scores: Tensor) -> None:
        """One more level; `rows` are those of its parents in the level before."""
        parents = rows + self._first
        self._columns.append((tokens, parents, torch.full_like(tokens, depth), scores))
        self._first, self._size = self._size, self._size + tokens.shape[0]
        if self._size > self.nodes:
            all_scores = torch.cat([column[3] for column in self._columns])
            self.floor = all_scores.topk(self.nodes).values[-1]

    def tree(self) -> TokenTree:
        """The best `nodes` candidates, in growth order."""
        anchor = self.anchor
        tokens, parents, depths, scores = (
            torch.cat(column) for column in zip(*self._columns, strict=True)
        )
        # Stable, so equal scores stay in order of depth, then of parent and rank.
        order = scores.argsort(descending=True, stable=True)[: self.nodes]
        grown = torch.zeros(self._size, dtype=torch.long, device=order.device)
        grown[order + 1] = torch.arange(1, order.shape[0] + 1, device=order.device)
        parents = grown[parents[order]]
        if not devices.reads_without_sync(order.device):
            return TokenTree(
                _after(anchor, tokens[order]),
                _after(-1, parents),
                _after(0, depths[order]),
                _after(0.0, scores[order]),
            )
        return TokenTree.from_lists(
            [anchor, *tokens[order].tolist()],
            [-1, *parents.tolist()],
            [0, *depths[order].tolist()],
            [0.0, *scores[order].tolist()],
        )


def _after(first: float, column: Tensor) -> Tensor:
    """The column with one entry before it, on the column's device."""
    return torch.cat([column.new_full((1,), first), column])
