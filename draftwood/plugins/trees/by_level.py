"""Trees grown a level at a time, from tensors on the proposal's device."""

import math
from collections.abc import Callable

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
        return _grown_without_sync(proposal, nodes, depth).tree(anchor)
    if beam is None and not proposal.pass_per_level:
        width = max(FIRST_WIDTH, nodes // 4)
        while (few := proposal.shortlisted(width)) is not proposal:
            levels, unlisted_bound = _grown(few, nodes, depth, nodes, None)
            if unlisted_bound == -math.inf or float(levels.floor) > unlisted_bound:
                return levels.tree(anchor)
            width *= 2

    def expand_next(levels: "_Levels") -> bool:
        return should_expand(levels.tree(anchor))

    lowest = floor if proposal.pass_per_level else -math.inf
    return _grown(proposal, nodes, depth, beam or nodes, expand_next, lowest)[0].tree(anchor)


def _grown(
    proposal: Proposal,
    nodes: int,
    depth: int,
    beam: int,
    expand_next: "Callable[[_Levels], bool] | None",
    lowest: float = -math.inf,
) -> "tuple[_Levels, float]":
    """The levels, and a bound on the score of every node that was not examined.

    Of each level only what may be among the N best of all levels so far is kept and advanced:
    a later node that ties with the N-th comes after it.
    """
    levels = _Levels(nodes, proposal.device)
    frontier = proposal.root()
    scores = torch.zeros(1, dtype=torch.float64, device=proposal.device)
    unlisted_bound = torch.full((1,), -torch.inf, dtype=torch.float64, device=proposal.device)
    for level in range(1, depth + 1):
        children = proposal.expand(frontier, min(beam, nodes))
        if children.unlisted_bound is not None:
            unlisted_bound = torch.maximum(unlisted_bound, (scores + children.unlisted_bound).max())
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
        if proposal.pass_per_level and expand_next is not None and not expand_next(levels):
            break
        scores = scores[:alive]
        frontier = proposal.advance(frontier, rows[:alive], tokens[:alive])
    return levels, float(unlisted_bound)


def _fixed_size(proposal: Proposal) -> bool:
    """Whether a tree's size is known without reading from the device: no filter excludes tokens, so
    there are always enough nodes. (A distribution so sharp that it rounds to zeros gives nodes of
    probability zero; they come last and bias no rule.)"""
    sampling = proposal.sampling
    cut = (sampling.top_k, sampling.top_p, sampling.min_p) != (None, None, None)
    return not (
        devices.reads_without_sync(proposal.device)
        or proposal.pass_per_level
        or sampling.greedy
        or cut
        or proposal.shortlisted(FIRST_WIDTH) is not proposal
    )


def _grown_without_sync(proposal: Proposal, nodes: int, depth: int) -> "_Levels":
    """`_grown` without synchronising with the device: nodes that it would prune are carried along,
    and rank last."""
    levels = _Levels(nodes, proposal.device)
    frontier = proposal.root()
    scores = torch.zeros(1, dtype=torch.float64, device=proposal.device)
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
    return levels


class _Levels:
    """Candidates of all levels so far, level by level, each level in its own best-first order.

    floor: () float64, the score that a node of a deeper level must exceed to be among the `nodes`
    best of all.
    """

    def __init__(self, nodes: int, device: torch.device) -> None:
        self.nodes = nodes
        self.floor = torch.tensor(-torch.inf, dtype=torch.float64, device=device)
        self._first = 0  # index of the last level's first candidate; the anchor is 0
        self._size = 1
        self._columns: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []

    def add(self, tokens: Tensor, rows: Tensor, depth: int, scores: Tensor) -> None:
        """One more level. rows: of its parents in the level before; all tensors (F,)."""
        parents = rows + self._first
        self._columns.append((tokens, parents, torch.full_like(tokens, depth), scores))
        self._first, self._size = self._size, self._size + tokens.shape[0]
        if self._size > self.nodes:
            every = torch.cat([column[3] for column in self._columns])
            self.floor = every.topk(self.nodes).values[-1]

    def tree(self, anchor: int) -> TokenTree:
        """The best `nodes` of them, in growth order."""
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
    """The column with one entry before it, made where it lies."""
    return torch.cat([column.new_full((1,), first), column])
