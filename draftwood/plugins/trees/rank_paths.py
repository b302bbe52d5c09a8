"""Trees of a given shape: which children, by rank, hang from which node."""

from collections.abc import Sequence

import torch

from draftwood.core.interfaces.tree import ShouldExpand
from draftwood.core.proposals import Proposal, Table
from draftwood.core.tree import TokenTree

Node = tuple[float, tuple[int, ...], int]
"""Log path score, rank path, token."""


def follow(
    anchor: int,
    proposal: Proposal,
    paths: Sequence[tuple[int, ...]],
    nodes: int,
    depth: int,
    should_expand: ShouldExpand,
) -> TokenTree:
    """The tree of these rank paths, (0, 2) being the third-best token after the best.

    paths: prefix-closed. nodes, depth: most of each. Growth order is by path score, then depth,
    then rank path: each prefix is the best tree of its size within the shape. Paths whose token
    does not exist or has probability zero are left out, with all below them.
    """
    levels: list[list[tuple[int, ...]]] = [[] for _ in range(depth)]
    for path in sorted(paths):
        if len(path) <= depth:
            levels[len(path) - 1].append(path)
    width = 1 + max((path[-1] for level in levels for path in level), default=0)
    table = proposal.table(width) if proposal.device.type == "cpu" else None
    found = (
        _look_up(table, levels)
        if table
        else _expand(anchor, proposal, levels, nodes, should_expand)
    )
    return _tree(anchor, found, nodes)


def _look_up(table: Table, levels: Sequence[Sequence[tuple[int, ...]]]) -> list[Node]:
    found: list[Node] = []
    at: dict[tuple[int, ...], tuple[float, int]] = {(): (0.0, 0)}
    for level in levels:
        for path in level:
            score, row = at.get(path[:-1], (0.0, -1))
            rank = path[-1]
            if row < 0 or rank >= len((children := table.row(row)).tokens):
                continue
            score += children.log_q[rank]
            if score > -torch.inf:
                found.append((score, path, children.tokens[rank]))
                at[path] = (score, children.next_rows[rank])
    return found


def _expand(
    anchor: int,
    proposal: Proposal,
    levels: Sequence[Sequence[tuple[int, ...]]],
    nodes: int,
    should_expand: ShouldExpand,
) -> list[Node]:
    found: list[Node] = []
    frontier, scores = proposal.root(), [0.0]
    row_of: dict[tuple[int, ...], int] = {(): 0}
    for depth, level in enumerate(levels):
        children = proposal.expand(frontier, 1 + max((path[-1] for path in level), default=0))
        tokens, log_q = children.tokens.tolist(), children.log_q.tolist()
        kept: list[tuple[int, int, float, tuple[int, ...]]] = []
        for path in level:
            row, rank = row_of.get(path[:-1], -1), path[-1]
            if row >= 0 and rank < len(tokens[row]) and log_q[row][rank] > -torch.inf:
                kept.append((row, tokens[row][rank], scores[row] + log_q[row][rank], path))
        found.extend((score, path, token) for _, token, score, path in kept)
        if not kept or depth + 1 == len(levels) or not levels[depth + 1]:
            break
        if proposal.pass_per_level and not should_expand(_tree(anchor, found, nodes)):
            break
        rows = torch.tensor([row for row, *_ in kept], device=children.tokens.device)
        chosen = torch.tensor([token for _, token, *_ in kept], device=children.tokens.device)
        frontier = proposal.advance(frontier, rows, chosen)
        row_of = {path: i for i, (*_, path) in enumerate(kept)}
        scores = [score for *_, score, _ in kept]
    return found


def _tree(anchor: int, found: Sequence[Node], nodes: int) -> TokenTree:
    order = sorted(found, key=lambda node: (-node[0], len(node[1]), node[1]))[:nodes]
    index: dict[tuple[int, ...], int] = {(): 0}
    index |= {path: i for i, (_, path, _) in enumerate(order, 1)}
    return TokenTree.from_lists(
        [anchor, *(token for *_, token in order)],
        [-1, *(index[path[:-1]] for _, path, _ in order)],
        [0, *(len(path) for _, path, _ in order)],
        [0.0, *(score for score, *_ in order)],
    )
