"""Trees of a given shape: which children, by rank, hang from which node."""

from collections.abc import Sequence

import torch

from draftwood.core.interfaces.tree import ShouldExpand
from draftwood.core.proposals import Proposal, Table
from draftwood.core.tree import TokenTree
from draftwood.plugins.trees.options import RankPath
from draftwood.plugins.trees.prefix_tree import ScoredPath, prefix_tree

Levels = Sequence[Sequence[RankPath]]
"""Rank paths by depth, at least one of each: (0, 2) is the third-best token after the best."""


def grow_rank_paths(
    anchor: int, proposal: Proposal, levels: Levels, nodes: int, should_expand: ShouldExpand
) -> TokenTree:
    """The best `nodes` of these rank paths, every prefix of which must be listed.

    Growth order is that of `prefix_tree`: each prefix is the best tree of its size within the
    shape. Paths whose token does not exist or has probability zero are left out, with all below.
    """
    width = 1 + max(path[-1] for paths in levels for path in paths)
    table = proposal.table(width) if proposal.device.type == "cpu" else None
    if table:
        return prefix_tree(anchor, _look_up(table, levels), nodes)
    return _expand(anchor, proposal, levels, nodes, should_expand)


def _look_up(table: Table, levels: Levels) -> list[ScoredPath]:
    nodes: list[ScoredPath] = []
    parents: dict[RankPath, tuple[float, int]] = {(): (0.0, 0)}
    for paths in levels:
        for path in paths:
            score, row = parents.get(path[:-1], (0.0, -1))
            rank = path[-1]
            if row < 0 or rank >= len((children := table.row(row)).tokens):
                continue
            score += children.log_q[rank]
            if score > -torch.inf:
                nodes.append((score, path, children.tokens[rank]))
                parents[path] = (score, children.next_rows[rank])
    return nodes


def _expand(
    anchor: int, proposal: Proposal, levels: Levels, nodes: int, should_expand: ShouldExpand
) -> TokenTree:
    grown: list[ScoredPath] = []
    frontier = proposal.root()
    parents: dict[RankPath, tuple[float, int]] = {(): (0.0, 0)}
    for depth, paths in enumerate(levels, 1):
        children = proposal.expand(frontier, 1 + max(path[-1] for path in paths))
        tokens, log_q = children.tokens.tolist(), children.log_q.tolist()
        rows: list[int] = []
        level: list[ScoredPath] = []
        for path in paths:
            score, row = parents.get(path[:-1], (0.0, -1))
            rank = path[-1]
            if row >= 0 and rank < len(tokens[row]) and log_q[row][rank] > -torch.inf:
                rows.append(row)
                level.append((score + log_q[row][rank], path, tokens[row][rank]))
        grown += level
        if not level or depth == len(levels):
            break
        if proposal.pass_per_level and not should_expand(prefix_tree(anchor, grown, nodes)):
            break
        device = children.tokens.device
        chosen = torch.tensor([token for *_, token in level], device=device)
        frontier = proposal.advance(frontier, torch.tensor(rows, device=device), chosen)
        parents = {path: (score, row) for row, (score, path, _) in enumerate(level)}
    return prefix_tree(anchor, grown, nodes)
