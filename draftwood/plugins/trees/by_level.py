"""Trees grown a level at a time, from tensors on the proposal's device."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from draftwood.core import devices
from draftwood.core.interfaces.tree import ShouldExpand
from draftwood.core.proposals import Proposal
from draftwood.core.tree import TokenTree

FEW = 8
"""Tokens of a branch that are looked at first. Twice as many each time it was not enough."""


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

    floor: where levels cost a pass, the log path score that all but the best node must reach: a
    node that cannot pay for its place need not be gone on from either.

    beam: most nodes of a level that are gone on from, and most children of each; None for as many
    as could matter, which gives the best tree there is. That tree is first looked for among few
    tokens of each distribution. It is right if its last node is better than any token that was left
    out: all below such a token is worse still. On a device that it would have to wait for it asks
    for nothing, where the form of the distribution allows it, and the tree stays there."""
    if beam is None and _needs_no_answer(proposal):
        return _unasked(proposal, nodes, depth).tree(anchor)
    if beam is None and not proposal.pass_per_level:
        width = max(FEW, nodes // 4)
        while (few := proposal.shortlisted(width)) is not proposal:
            found, unlisted_bound = _grown(few, nodes, depth, nodes, None)
            if unlisted_bound == -math.inf or float(found.floor) > unlisted_bound:
                return found.tree(anchor)
            width *= 2

    def ask(found: "_Levels") -> bool:
        return should_expand(found.tree(anchor))

    lowest = floor if proposal.pass_per_level else -math.inf
    return _grown(proposal, nodes, depth, beam or nodes, ask, lowest)[0].tree(anchor)


def _grown(
    proposal: Proposal,
    nodes: int,
    depth: int,
    beam: int,
    ask: "Callable[[_Levels], bool] | None",
    lowest: float = -math.inf,
) -> "tuple[_Levels, float]":
    """The levels, and the best score that a node could have which was not looked at.

    Of each level only what may be among the N best of all levels so far is kept and advanced:
    a later node that ties with the N-th comes after it.
    """
    found = _Levels(nodes, proposal.device)
    frontier = proposal.root()
    scores = torch.zeros(1, dtype=torch.float64, device=proposal.device)
    unlisted_bound = torch.full((1,), -torch.inf, dtype=torch.float64, device=proposal.device)
    for level in range(1, depth + 1):
        children = proposal.expand(frontier, min(beam, nodes))
        if children.unlisted_bound is not None:
            unlisted_bound = torch.maximum(unlisted_bound, (scores + children.unlisted_bound).max())
        width = children.tokens.shape[1]
        every = (scores[:, None] + children.log_q.double()).flatten()
        able = (every > found.floor.clamp(min=lowest)).nonzero().squeeze(1)
        if level == 1 and not len(able):
            able = every.argmax(0, keepdim=True)
        order = able[every[able].argsort(descending=True, stable=True)[:nodes]]
        rows, tokens, scores = order // width, children.tokens.flatten()[order], every[order]
        found.add(tokens, rows, level, scores)
        # Nor can a node below the new floor have a descendant above it: it is not advanced.
        alive = min(beam, int((scores > found.floor.clamp(min=lowest)).sum()))
        if level == depth or alive == 0:
            break
        if proposal.pass_per_level and ask is not None and not ask(found):
            break
        scores = scores[:alive]
        frontier = proposal.advance(frontier, rows[:alive], tokens[:alive])
    return found, float(unlisted_bound)


def _needs_no_answer(proposal: Proposal) -> bool:
    """Whether a tree's size is known without looking: any token may follow, so there are always
    enough nodes. (A distribution so sharp that it rounds to zeros gives nodes of probability zero;
    they come last, and no rule is misled by them.)"""
    sampling = proposal.sampling
    cut = (sampling.top_k, sampling.top_p, sampling.min_p) != (None, None, None)
    return not (
        devices.reads_without_sync(proposal.device)
        or proposal.pass_per_level
        or sampling.greedy
        or cut
        or proposal.shortlisted(FEW) is not proposal
    )


def _unasked(proposal: Proposal, nodes: int, depth: int) -> "_Levels":
    """`_grown` without an answer from the device. What could only be pruned by asking how much is
    still alive is carried along, and loses in the end."""
    found = _Levels(nodes, proposal.device)
    frontier = proposal.root()
    scores = torch.zeros(1, dtype=torch.float64, device=proposal.device)
    for level in range(1, depth + 1):
        children = proposal.expand(frontier, nodes)
        every = (scores[:, None] + children.log_q.double()).flatten()
        scores, order = every.sort(descending=True, stable=True)
        scores, order = scores[:nodes], order[:nodes]
        rows = order // children.tokens.shape[1]
        tokens = children.tokens.flatten()[order]
        found.add(tokens, rows, level, scores)
        if level < depth:
            frontier = proposal.advance(frontier, rows, tokens)
    return found


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
