"""Best-first search over a proposal's table, on the host."""

import heapq
from collections.abc import Sequence

from draftwood.core.proposals.table import Table
from draftwood.core.tree import TokenTree


def best_first_search(
    anchor: int,
    table: Table,
    nodes: int,
    depth: int,
    floors: Sequence[float] = (),
    width: int | None = None,
) -> TokenTree | None:
    """The tree of the `nodes` paths of highest score and at most `depth` tokens.

    Args:
        anchor: Token of node 0.
        table: Distributions of the proposal.
        nodes: Most draft nodes.
        depth: Deepest level.
        floors: As in `Limits`.
        width: Tokens in a row of the table; None if rows hold all that `nodes` can need.

    Returns:
        The tree, or None if it may need a token that the table leaves out.
    """
    tokens, parents, depths, log_rho = [anchor], [-1], [0], [0.0]
    infinity = float("inf")
    pop, push, replace = heapq.heappop, heapq.heappush, heapq.heapreplace
    row_of, stops = table.row, len(floors)
    # Entries are (-score, depth, parent, rank, row). The first four are the order; the row is the
    # distribution. A node enters when its parent or its better sibling leaves: it comes after both.
    queue = []
    row = row_of(0)
    if row.log_q and row.log_q[0] > -infinity:
        queue.append((-row.log_q[0], 1, 0, 0, row))
    for node in range(1, nodes + 1):
        if not queue:
            break
        cost, level, parent, rank, row = queue[0]
        if node <= stops and -cost < floors[node - 1]:
            break
        log_q = row.log_q
        tokens.append(row.tokens[rank])
        parents.append(parent)
        depths.append(level)
        log_rho.append(-cost)
        sibling = rank + 1
        if sibling < len(log_q) and (step := log_q[sibling]) > -infinity:
            replace(queue, (-(log_rho[parent] + step), level, parent, sibling, row))
        elif sibling == width and width < nodes:
            return None
        else:
            pop(queue)
        if level < depth and (next_row := row.next_rows[rank]) >= 0:
            child_row = row_of(next_row)
            if (log_q := child_row.log_q) and (step := log_q[0]) > -infinity:
                push(queue, (cost - step, level + 1, node, 0, child_row))
    return TokenTree.from_lists(tokens, parents, depths, log_rho)
