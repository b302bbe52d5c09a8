"""The walk from the root: one program, since every step needs the last one's.

A ruling is one int64 tensor: how many nodes the path has, the bonus token, how many decisions on
the way rounding could have changed, the first node on it that has no distribution (-1 if all do),
then the path's nodes, the anchor first."""

import triton
import triton.language as tl

from draftwood.plugins.verifiers.triton.judge.rows import MARGIN, given_float

COUNT = tl.constexpr(0)
BONUS = tl.constexpr(1)
NEAR = tl.constexpr(2)
BROKEN = tl.constexpr(3)
PATH = tl.constexpr(4)


@triton.jit
def pick(values: tl.tensor, lane: tl.tensor, place: tl.tensor) -> tl.tensor:
    """values[place], of a block."""
    return tl.sum(tl.where(lane == place, values, tl.zeros_like(values)), 0)


@triton.jit
def broken_rows(
    peaks: tl.tensor,
    lane: tl.tensor,
    inside: tl.tensor,
    splits: tl.tensor,
    DOUBLE: tl.constexpr,
    NODES: tl.constexpr,
) -> tl.tensor:
    """Which rows have no distribution: NaN, an infinite logit, or none that is finite."""
    peak = tl.full([NODES], -float("inf"), tl.float64 if DOUBLE else tl.float32)
    for split in range(splits):
        value = tl.load(peaks + lane * splits + split, mask=inside, other=0.0)
        peak = tl.maximum(peak, value)
    return ((peak == float("inf")) | (peak == -float("inf"))).to(tl.int32)


@triton.jit
def walk_kernel(
    tokens: tl.tensor,
    parents: tl.tensor,
    given: tl.tensor,
    peaks: tl.tensor,
    bounds: tl.tensor,
    bests: tl.tensor,
    seconds: tl.tensor,
    winners: tl.tensor,
    ruling: tl.tensor,
    size: tl.tensor,
    splits: tl.tensor,
    GREEDY: tl.constexpr,
    FILTERED: tl.constexpr,
    DOUBLE: tl.constexpr,
    NODES: tl.constexpr,
) -> None:
    """`match`: from the root, to the first child that carries its parent's draw.

    tokens, parents: (N+1,) int64. bests, seconds, winners: of each row's chunks, (N+1, splits);
    greedy, peaks and their tokens stand in. ruling: (4 + N+1,) int64. Grid: (1,).
    """
    lane = tl.arange(0, NODES)
    inside = lane < size
    best = tl.full([NODES], -float("inf"), tl.float64 if DOUBLE else tl.float32)
    second, drawn = best, tl.zeros([NODES], tl.int64)
    for split in range(splits):
        at = lane * splits + split
        value = tl.load(bests + at, mask=inside, other=-float("inf"))
        token = tl.load(winners + at, mask=inside, other=0)
        if not GREEDY:
            other = tl.load(seconds + at, mask=inside, other=-float("inf"))
            second = tl.maximum(tl.maximum(second, other), tl.minimum(best, value))
        drawn = tl.where((value > best) | (split == 0), token, drawn)
        best = tl.maximum(best, value)
    near = tl.zeros([NODES], tl.int32)
    if not GREEDY:
        near = (second >= best - given_float(given, MARGIN, DOUBLE)).to(tl.int32)
    if FILTERED:
        near |= tl.load(bounds + lane * 3 + 2, mask=inside, other=0).to(tl.int32)
    broken = broken_rows(peaks, lane, inside, splits, DOUBLE, NODES)
    said = tl.load(tokens + lane, mask=inside, other=-1)
    parent = tl.load(parents + lane, mask=inside, other=-2)
    node, count, doubts, failed, going = 0, 0, 0, -1, 1
    while going > 0:
        tl.store(ruling + PATH + count, node)
        count += 1
        doubts += pick(near, lane, node)
        if pick(broken, lane, node) > 0:
            failed, going = node, 0
        token = pick(drawn, lane, node)
        child = tl.min(tl.where((parent == node) & (said == token), lane, NODES), 0)
        tl.store(ruling + BONUS, token)
        if child < NODES and going > 0:
            node = child
        else:
            going = 0
    tl.store(ruling + COUNT, count)
    tl.store(ruling + NEAR, doubts)
    tl.store(ruling + BROKEN, failed)
