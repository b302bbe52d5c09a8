"""`ratio` and `multi_round` on the device.

What is left of p after a node's children were rejected does not depend on any draw, so every node
works out its own, child by child, before anything is decided. Then the walk reads one flag a
child, and one race over the distribution left at its end gives the bonus token. `ratio` is the same
on chains."""

import triton
import triton.language as tl

from draftwood.plugins.verifiers.triton.judge.draws import log_noise
from draftwood.plugins.verifiers.triton.judge.filters import weighed
from draftwood.plugins.verifiers.triton.judge.rows import (
    COOLING,
    HEADER,
    MARGIN,
    given_float,
    kept,
    row_peak,
    row_place,
)
from draftwood.plugins.verifiers.triton.judge.walk import (
    BONUS,
    BROKEN,
    COUNT,
    NEAR,
    PATH,
    broken_rows,
    pick,
)


@triton.jit
def probs(
    row: tl.tensor,
    token: tl.tensor,
    peak: tl.tensor,
    place: tl.tensor,
    cooling: tl.tensor,
    last: tl.tensor,
    first: tl.tensor,
    whole: tl.tensor,
    vocab: tl.tensor,
    TEMPERED: tl.constexpr,
    GREEDY: tl.constexpr,
    DOUBLE: tl.constexpr,
) -> tl.tensor:
    """p of a block of tokens; greedy, all of it is at `place`."""
    if GREEDY:
        return (token == place).to(tl.float64 if DOUBLE else tl.float32)
    distance, mass = weighed(row, token, peak, cooling, vocab, TEMPERED, DOUBLE)
    inside = kept(distance, token, last, first) & (token < vocab)
    return tl.where(inside, mass / whole, mass - mass)


@triton.jit
def residual_kernel(
    logits: tl.tensor,
    stride: tl.tensor,
    peaks: tl.tensor,
    places: tl.tensor,
    given: tl.tensor,
    tokens: tl.tensor,
    parents: tl.tensor,
    q: tl.tensor,
    q_stride: tl.tensor,
    bounds: tl.tensor,
    masses: tl.tensor,
    left: tl.tensor,
    shares: tl.tensor,
    flags: tl.tensor,
    size: tl.tensor,
    vocab: tl.tensor,
    splits: tl.tensor,
    TEMPERED: tl.constexpr,
    GREEDY: tl.constexpr,
    DOUBLE: tl.constexpr,
    TILE: tl.constexpr,
    SPAN: tl.constexpr,
) -> None:
    """Whether each child would be accepted, were its earlier siblings rejected, and what is left
    of its parent's distribution after all of them.

    given: after its header, for each node the bits of the uniform that decides about it, then for
    each node the key of the bonus drawn after it. q: (N, V), row i-1 what node i was drawn from.
    left: (N+1, V). shares: (N+1, 2): the inverse product of the residuals' sums, and their number.
    flags: (N+1,) int64: 1 if accepted, plus 2 if rounding could have changed that. Grid: (N+1,).
    """
    node = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, TILE)
    row, own = logits + node * stride, left + node * vocab
    peak = row_peak(peaks, node, splits, SPAN)
    place = row_place(peaks, places, node, splits, SPAN)
    cooling = given_float(given, COOLING, DOUBLE)
    margin = given_float(given, MARGIN, DOUBLE).to(tl.float64)
    last = tl.load(bounds + node * 3).to(tl.uint64 if DOUBLE else tl.uint32)
    first, whole = tl.load(bounds + node * 3 + 1), tl.load(masses + node)
    for start in range(0, vocab, TILE):
        token = start + lane
        p = probs(
            row, token, peak, place, cooling, last, first, whole, vocab,
            TEMPERED, GREEDY, DOUBLE,
        )  # fmt: skip
        tl.store(own + token, p, mask=token < vocab)
    zero = tl.zeros([TILE], tl.float64 if DOUBLE else tl.float32)
    inverse, judged = margin * 0 + 1.0, 0
    for child in range(1, size):
        if tl.load(parents + child) == node:
            drawn = tl.load(tokens + child)
            from_q = q + (node - node + child - 1) * q_stride  # in 64 bits
            sums, chances = zero, zero
            for start in range(0, vocab, TILE):
                token = start + lane
                p = tl.load(own + token, mask=token < vocab, other=0.0)
                other = tl.load(from_q + token, mask=token < vocab, other=0.0).to(p.dtype)
                sums += tl.maximum(p - other, 0.0)
                chances += tl.where(token == drawn, p, zero)
            total, chance = tl.sum(sums, 0), tl.sum(chances, 0).to(tl.float64)
            origin = probs(
                row, drawn, peak, place, cooling, last, first, whole, vocab,
                TEMPERED, GREEDY, DOUBLE,
            )  # fmt: skip
            uniform = tl.load(given + HEADER + child).to(tl.float64, bitcast=True)
            needed = uniform * tl.load(from_q + drawn).to(tl.float64)
            # p is right up to a share of the *first* p; every residual divides that by its sum.
            slack = margin * (judged + 1) * inverse * (origin + chance)
            flag = (needed < chance).to(tl.int64)
            if not GREEDY:
                flag += tl.where(tl.abs(needed - chance) > slack, 0, 2)
            tl.store(flags + child, flag)
            if total > 0:
                for start in range(0, vocab, TILE):
                    token = start + lane
                    p = tl.load(own + token, mask=token < vocab, other=0.0)
                    other = tl.load(from_q + token, mask=token < vocab, other=0.0).to(p.dtype)
                    tl.store(own + token, tl.maximum(p - other, 0.0) / total, mask=token < vocab)
            some = tl.where(total > 0, total, 1.0)
            inverse *= tl.where(total > 0, 1.0 / some, float("inf")).to(tl.float64)
            judged += 1
    tl.store(shares + node * 2, inverse)
    tl.store(shares + node * 2 + 1, judged + 0.0)


@triton.jit
def accepted_walk_kernel(
    parents: tl.tensor,
    peaks: tl.tensor,
    flags: tl.tensor,
    bounds: tl.tensor,
    ruling: tl.tensor,
    size: tl.tensor,
    splits: tl.tensor,
    DOUBLE: tl.constexpr,
    NODES: tl.constexpr,
) -> None:
    """From the root to the first accepted child of each node, until none is. Grid: (1,)."""
    lane = tl.arange(0, NODES)
    inside = lane < size
    parent = tl.load(parents + lane, mask=inside, other=-2)
    flag = tl.load(flags + lane, mask=inside & (lane > 0), other=0)
    accepted, near = flag & 1, flag >> 1
    rough = tl.load(bounds + lane * 3 + 2, mask=inside, other=0)
    broken = broken_rows(peaks, lane, inside, splits, DOUBLE, NODES)
    node, count, doubts, failed, going = 0, 0, 0, -1, 1
    while going > 0:
        tl.store(ruling + PATH + count, node)
        count += 1
        doubts += pick(rough, lane, node).to(tl.int32)
        if pick(broken, lane, node) > 0:
            failed, going = node, 0
        below = parent == node
        child = tl.min(tl.where(below & (accepted > 0), lane, NODES), 0)
        doubts += tl.sum(tl.where(below & (lane <= child), near, 0), 0).to(tl.int32)
        if child < NODES and going > 0:
            node = child
        else:
            going = 0
    tl.store(ruling + COUNT, count)
    tl.store(ruling + NEAR, doubts)
    tl.store(ruling + BROKEN, failed)


@triton.jit
def bonus_race_kernel(
    logits: tl.tensor,
    stride: tl.tensor,
    peaks: tl.tensor,
    places: tl.tensor,
    given: tl.tensor,
    bounds: tl.tensor,
    masses: tl.tensor,
    left: tl.tensor,
    shares: tl.tensor,
    ruling: tl.tensor,
    values: tl.tensor,
    winners: tl.tensor,
    size: tl.tensor,
    vocab: tl.tensor,
    splits: tl.tensor,
    TEMPERED: tl.constexpr,
    GREEDY: tl.constexpr,
    CHUNK: tl.constexpr,
    TILE: tl.constexpr,
    SPAN: tl.constexpr,
    DOUBLE: tl.constexpr,
) -> None:
    """The race over what is left at the path's end, in chunks.

    values: (4, splits): the best value, the same at its least, at its most, and the most that any
    other token of the chunk may have. winners: (splits,) int64. Grid: (splits,).
    """
    split = tl.program_id(0)
    lane = tl.arange(0, TILE)
    node = tl.load(ruling + PATH + tl.load(ruling + COUNT) - 1)
    row, own = logits + node * stride, left + node * vocab
    peak = row_peak(peaks, node, splits, SPAN)
    place = row_place(peaks, places, node, splits, SPAN)
    cooling = given_float(given, COOLING, DOUBLE)
    last = tl.load(bounds + node * 3).to(tl.uint64 if DOUBLE else tl.uint32)
    first, whole = tl.load(bounds + node * 3 + 1), tl.load(masses + node)
    inverse, judged = tl.load(shares + node * 2), tl.load(shares + node * 2 + 1)
    loose = given_float(given, MARGIN, DOUBLE).to(tl.float64) * (judged + 1) * inverse
    loose = tl.minimum(loose, 1e30)
    loose = loose if DOUBLE else loose.to(tl.float32)
    key = tl.load(given + HEADER + size + node).to(tl.uint64, bitcast=True)
    lowest = tl.full([TILE], -float("inf"), tl.float64 if DOUBLE else tl.float32)
    best, least, most, others, winner = lowest, lowest, lowest, lowest, lane
    for start in range(0, CHUNK, TILE):
        token = split * CHUNK + start + lane
        p = tl.load(own + token, mask=token < vocab, other=0.0)
        origin = probs(
            row, token, peak, place, cooling, last, first, whole, vocab,
            TEMPERED, GREEDY, DOUBLE,
        )  # fmt: skip
        slack = tl.zeros_like(p) if GREEDY else loose * origin
        noise = log_noise(key, token, DOUBLE)
        value = log_or_lowest(p, lowest) - noise
        high = log_or_lowest(p + slack, lowest) - noise
        better = value > best
        others = tl.maximum(others, tl.where(better, most, high))
        winner = tl.where(better, token, winner)
        least = tl.where(better, log_or_lowest(p - slack, lowest) - noise, least)
        most = tl.where(better, high, most)
        best = tl.where(better, value, best)
    highest = tl.max(best, 0)
    place = tl.min(tl.where(best == highest, winner, 0x7FFFFFFF), 0)
    others = tl.maximum(others, tl.where(winner == place, lowest, most))
    tl.store(values + split, highest)
    tl.store(values + splits + split, pick_real(least, winner, place, lowest))
    tl.store(values + 2 * splits + split, pick_real(most, winner, place, lowest))
    tl.store(values + 3 * splits + split, tl.max(others, 0))
    tl.store(winners + split, place.to(tl.int64))


@triton.jit
def log_or_lowest(p: tl.tensor, lowest: tl.tensor) -> tl.tensor:
    """log p, -inf where p is not positive."""
    return tl.where(p > 0, tl.log(tl.where(p > 0, p, p - p + 1.0)), lowest)


@triton.jit
def pick_real(
    values: tl.tensor, winner: tl.tensor, place: tl.tensor, lowest: tl.tensor
) -> tl.tensor:
    """The value in the lane whose token is `place`; a sum would turn infinities into NaN."""
    return tl.max(tl.where(winner == place, values, lowest), 0)


@triton.jit
def bonus_kernel(
    values: tl.tensor,
    winners: tl.tensor,
    ruling: tl.tensor,
    splits: tl.tensor,
    GREEDY: tl.constexpr,
    SPAN: tl.constexpr,
) -> None:
    """The winner among the chunks, and whether rounding could have let another win. Grid: (1,)."""
    split = tl.arange(0, SPAN)
    inside = split < splits
    best = tl.load(values + split, mask=inside, other=-float("inf"))
    highest = tl.max(best, 0)
    chunk = tl.min(tl.where(best == highest, split, SPAN), 0)
    least = tl.load(values + splits + chunk)
    most = tl.load(values + 2 * splits + split, mask=inside & (split != chunk), other=-float("inf"))
    others = tl.load(values + 3 * splits + split, mask=inside, other=-float("inf"))
    tl.store(ruling + BONUS, tl.load(winners + chunk))
    if not GREEDY:
        close = tl.maximum(tl.max(most, 0), tl.max(others, 0)) >= least
        tl.store(ruling + NEAR, tl.load(ruling + NEAR) + close.to(tl.int64))
