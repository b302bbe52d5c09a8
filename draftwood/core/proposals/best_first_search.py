"""Best-first search over a proposal's table, on the host."""

import heapq
from collections.abc import Sequence

from draftwood.core.proposals.base import Table
from draftwood.core.tree import TokenTree


def best_first_search(
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
    row_of, stops = table.row, len(floors)
    # (-score, depth, parent, rank, row): the first four are the order, the last is the
    # distribution. A node enters when its parent, or its better sibling, leaves: all others come
    # after it.
    fringe = []
    row = row_of(0)
    if row[1] and row[1][0] > -infinity:
        fringe.append((-row[1][0], 1, 0, 0, row))
    for node in range(1, nodes + 1):
        if not fringe:
            break
        cost, level, parent, rank, row = fringe[0]
        if node <= stops and -cost < floors[node - 1]:
            break
        candidates, log_q, next_row = row
        tokens.append(candidates[rank])
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
        below = next_row[rank]
        if level < depth and below >= 0 and (ahead := row_of(below))[1]:
            step = ahead[1][0]
            if step > -infinity:
                push(fringe, (cost - step, level + 1, node, 0, ahead))
    return TokenTree.from_lists(tokens, parents, depths, log_rho)
