"""The walk from the root, in one program because every step needs the last one's result."""

import triton
import triton.language as tl

from draftwood.plugins.verifiers.triton.judge.buffers import (
    BONUS,
    COUNT,
    INVALID,
    MARGIN,
    NEAR_TIES,
    PATH,
    Race,
    Shape,
    TreeColumns,
)
from draftwood.plugins.verifiers.triton.judge.rows import input_float


@triton.jit
def select(values: tl.tensor, lane: tl.tensor, index: tl.tensor) -> tl.tensor:
    """values[index], of a block."""
    return tl.sum(tl.where(lane == index, values, tl.zeros_like(values)), 0)


@triton.jit
def invalid_rows(
    max_values: tl.tensor, shape: Shape, NODES: tl.constexpr, DOUBLE: tl.constexpr
) -> tl.tensor:
    """Which rows have no distribution: NaN, an infinite logit, or none that is finite."""
    lane = tl.arange(0, NODES)
    highest = tl.full([NODES], -float("inf"), tl.float64 if DOUBLE else tl.float32)
    for split in range(shape.splits):
        at = max_values + lane * shape.splits + split
        highest = tl.maximum(highest, tl.load(at, mask=lane < shape.size, other=0.0))
    return ((highest == float("inf")) | (highest == -float("inf"))).to(tl.int32)


@triton.jit
def walk(
    decision: tl.tensor,
    parent: tl.tensor,
    labels: tl.tensor,
    node_labels: tl.tensor,
    node_near: tl.tensor,
    child_near: tl.tensor,
    invalid: tl.tensor,
    NODES: tl.constexpr,
) -> tl.tensor:
    """Walk to the first child whose label is its parent's node label; return the last node.

    child_near: near ties of the children that are compared on the way.
    """
    lane = tl.arange(0, NODES)
    node, count, near_ties, invalid_node, active = 0, 0, 0, -1, 1
    while active > 0:
        tl.store(decision + PATH + count, node)
        count += 1
        near_ties += select(node_near, lane, node).to(tl.int32)
        if select(invalid, lane, node) > 0:
            invalid_node, active = node, 0
        is_child = parent == node
        accepted = is_child & (labels == select(node_labels, lane, node))
        child = tl.min(tl.where(accepted, lane, NODES), 0)
        compared = is_child & (lane <= child)
        near_ties += tl.sum(tl.where(compared, child_near, 0), 0).to(tl.int32)
        if child < NODES and active > 0:
            node = child
        else:
            active = 0
    tl.store(decision + COUNT, count)
    tl.store(decision + NEAR_TIES, near_ties)
    tl.store(decision + INVALID, invalid_node)
    return node


@triton.jit
def match_walk_kernel(
    tree: TreeColumns,
    inputs: tl.tensor,
    max_values: tl.tensor,
    bounds: tl.tensor,
    race: Race,
    decision: tl.tensor,
    shape: Shape,
    MODE: tl.constexpr,
    NODES: tl.constexpr,
) -> None:
    """`match`: from the root to the first child that carries its parent's draw. Grid: (1,).

    race: if greedy, the row maxima and their tokens.
    """
    lane = tl.arange(0, NODES)
    inside = lane < shape.size
    best = tl.full([NODES], -float("inf"), MODE.value.real)
    second, drawn = best, tl.zeros([NODES], tl.int64)
    for split in range(shape.splits):
        at = lane * shape.splits + split
        value = tl.load(race.best + at, mask=inside, other=-float("inf"))
        token = tl.load(race.tokens + at, mask=inside, other=0)
        if MODE.value.sampled:
            other = tl.load(race.second + at, mask=inside, other=-float("inf"))
            second = tl.maximum(tl.maximum(second, other), tl.minimum(best, value))
        drawn = tl.where((value > best) | (split == 0), token, drawn)
        best = tl.maximum(best, value)
    near = tl.zeros([NODES], tl.int32)
    if MODE.value.sampled:
        near = (second >= best - input_float(inputs, MARGIN, MODE.value.double)).to(tl.int32)
    if MODE.value.filtered:
        near |= tl.load(bounds + lane * 3 + 2, mask=inside, other=0).to(tl.int32)
    invalid = invalid_rows(max_values, shape, NODES, MODE.value.double)
    node_tokens = tl.load(tree.tokens + lane, mask=inside, other=-1)
    parent = tl.load(tree.parents + lane, mask=inside, other=-2)
    node = walk(decision, parent, node_tokens, drawn, near, tl.zeros_like(near), invalid, NODES)
    tl.store(decision + BONUS, select(drawn, lane, node))


@triton.jit
def residual_walk_kernel(
    parents: tl.tensor,
    max_values: tl.tensor,
    flags: tl.tensor,
    bounds: tl.tensor,
    decision: tl.tensor,
    shape: Shape,
    MODE: tl.constexpr,
    NODES: tl.constexpr,
) -> None:
    """From the root to the first accepted child of each node, until none is. Grid: (1,)."""
    lane = tl.arange(0, NODES)
    inside = lane < shape.size
    parent = tl.load(parents + lane, mask=inside, other=-2)
    flag = tl.load(flags + lane, mask=inside & (lane > 0), other=0)
    near = tl.load(bounds + lane * 3 + 2, mask=inside, other=0)
    invalid = invalid_rows(max_values, shape, NODES, MODE.value.double)
    accepted = flag & 1
    walk(decision, parent, accepted, tl.zeros_like(flag) + 1, near, flag >> 1, invalid, NODES)
