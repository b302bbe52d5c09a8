"""Best-first search over a proposal's table, on the host."""

import heapq
from collections.abc import Sequence

from draftwood.core.proposals.base import Table
from draftwood.core.values import TokenTree


def heap(
    anchor: int,
    table: Table,
    nodes: int,
    depth: int,
    floors: Sequence[float] = (),
    width: int | None = None,
) -> TokenTree | None:
    """The `nodes` best paths of at most `depth` tokens, popped best first from a heap.

    table: the `width` best tokens of every conditional, None for all that `nodes` can need. floors:
    as in `Limits`. Returns None if the tree may need a token that the table leaves out.
    """
    tokens, parents, depths, log_rho = [anchor], [-1], [0], [0.0]
    infinity = float("inf")
    pop, push, swap = heapq.heappop, heapq.heappush, heapq.heapreplace
    table_tokens, table_log_q, next_row = table.tokens, table.log_q, table.next_row
    stops = len(floors)
    # (-score, depth, parent, rank, row): the first four are the order, the last finds the law.
    # A node enters when its parent, or its better sibling, leaves: all others come after it.
    fringe = []
    if table_log_q[0] and table_log_q[0][0] > -infinity:
        fringe.append((-table_log_q[0][0], 1, 0, 0, 0))
    for node in range(1, nodes + 1):
        if not fringe:
            break
        cost, level, parent, rank, row = fringe[0]
        if node <= stops and -cost < floors[node - 1]:
            break
        log_q = table_log_q[row]
        tokens.append(table_tokens[row][rank])
        parents.append(parent)
        depths.append(level)
        log_rho.append(-cost)
        sibling = rank + 1
        if sibling < len(log_q) and (step := log_q[sibling]) > -infinity:
            swap(fringe, (-(log_rho[parent] + step), level, parent, sibling, row))
        elif sibling == width and width < nodes:
            return None
        else:
            pop(fringe)
        below = next_row[row][rank]
        if level < depth and below >= 0 and (ahead := table_log_q[below]):
            step = ahead[0]
            if step > -infinity:
                push(fringe, (cost - step, level + 1, node, 0, below))
    return TokenTree.of(tokens, parents, depths, log_rho)
