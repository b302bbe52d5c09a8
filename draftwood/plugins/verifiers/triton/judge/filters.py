"""Where top-k, top-p and min-p cut a row, and what the row weighs after them.

A sort would order a whole vocabulary to find one place in it. Here the place is found two bits at a
time, as in a radix select: each pass over the row weighs the tokens up to three keys. A key is a
token's distance from the peak in the order of floating-point numbers, so equal logits have
equal keys, and what ties at an edge is decided as `core.distributions` decides it: top-k keeps all
of them, top-p those with the highest ids."""

import triton
import triton.language as tl

from draftwood.plugins.verifiers.triton.judge.rows import (
    COOLING,
    MARGIN,
    MIN_P,
    TOP_K,
    TOP_P,
    flipped,
    given_float,
    kept,
    load_row,
    ordered,
    row_peak,
    scores,
)


@triton.jit
def weighed(
    row: tl.tensor,
    token: tl.tensor,
    peak: tl.tensor,
    cooling: tl.tensor,
    vocab: tl.tensor,
    TEMPERED: tl.constexpr,
    DOUBLE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """(distance, mass) of a block of tokens: how far from the peak in the order of numbers, and
    p over the peak's p."""
    score = scores(load_row(row, token, vocab, DOUBLE), peak, cooling, TEMPERED, DOUBLE)
    top = peak - peak if TEMPERED else peak
    return ordered(top, DOUBLE) - ordered(score, DOUBLE), tl.exp(score - top)


@triton.jit
def reach(
    row: tl.tensor,
    peak: tl.tensor,
    cooling: tl.tensor,
    vocab: tl.tensor,
    wanted: tl.tensor,
    MASS: tl.constexpr,
    TEMPERED: tl.constexpr,
    DOUBLE: tl.constexpr,
    TILE: tl.constexpr,
) -> tl.tensor:
    """The smallest distance such that tokens up to it weigh `wanted`, by mass or by count."""
    lane = tl.arange(0, TILE)
    found = ordered(peak - peak, DOUBLE) * 0
    bits = 64 if DOUBLE else 32
    for digit in range(0, bits, 2):
        step = (found * 0 + 1) << (bits - 2 - digit)
        end = found + (step - 1)
        if MASS:
            zero = tl.zeros([TILE], tl.float64 if DOUBLE else tl.float32)
        else:
            zero = tl.zeros([TILE], tl.int32)
        low, middle, high = zero, zero, zero
        for start in range(0, vocab, TILE):
            token = start + lane
            key, mass = weighed(row, token, peak, cooling, vocab, TEMPERED, DOUBLE)
            weight = mass if MASS else (token < vocab).to(tl.int32)
            low += tl.where(key <= end, weight, zero)
            middle += tl.where(key <= end + step, weight, zero)
            high += tl.where(key <= end + 2 * step, weight, zero)
        short = (tl.sum(low, 0) < wanted).to(tl.int32)
        short += (tl.sum(middle, 0) < wanted).to(tl.int32)
        short += (tl.sum(high, 0) < wanted).to(tl.int32)
        found += step * short.to(step.dtype)
    return found


@triton.jit
def lowest_of_highest(
    row: tl.tensor,
    peak: tl.tensor,
    cooling: tl.tensor,
    vocab: tl.tensor,
    edge: tl.tensor,
    needed: tl.tensor,
    TEMPERED: tl.constexpr,
    DOUBLE: tl.constexpr,
    TILE: tl.constexpr,
) -> tl.tensor:
    """Of the tokens at distance `edge`, the lowest id among the `needed` highest."""
    lane = tl.arange(0, TILE)
    seen, first = needed - needed, needed - needed
    tiles = tl.cdiv(vocab, TILE)
    for back in range(tiles):
        token = (tiles - 1 - back) * TILE + lane
        key, _ = weighed(row, token, peak, cooling, vocab, TEMPERED, DOUBLE)
        tied = ((key == edge) & (token < vocab)).to(tl.int32)
        here = tl.sum(tied, 0)
        rank = seen + here - tl.cumsum(tied, 0) + tied
        chosen = (tied > 0) & (rank == needed)
        first = tl.maximum(first, tl.max(tl.where(chosen, token, 0), 0))
        seen += here
    return first


@triton.jit
def filters_kernel(
    logits: tl.tensor,
    stride: tl.tensor,
    peaks: tl.tensor,
    given: tl.tensor,
    bounds: tl.tensor,
    masses: tl.tensor,
    vocab: tl.tensor,
    splits: tl.tensor,
    TEMPERED: tl.constexpr,
    BY_COUNT: tl.constexpr,
    BY_MASS: tl.constexpr,
    BY_FLOOR: tl.constexpr,
    DOUBLE: tl.constexpr,
    TILE: tl.constexpr,
    SPAN: tl.constexpr,
) -> None:
    """What filters keep of each row, and its mass.

    bounds: (N+1, 3) int64: the furthest distance that is kept (unsigned bits), the lowest id kept
    at it, and whether rounding could have moved either. masses: (N+1,), over the peak's p.
    BY_COUNT, BY_MASS, BY_FLOOR: whether there is a top_k, top_p, min_p. Grid: (N+1,).
    """
    node = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, TILE)
    row = logits + node * stride
    peak = row_peak(peaks, node, splits, SPAN)
    cooling = given_float(given, COOLING, DOUBLE)
    margin = given_float(given, MARGIN, DOUBLE)
    zero = ordered(peak - peak, DOUBLE) * 0
    last, first, near = flipped(zero, DOUBLE), 0, 0
    none = tl.zeros([TILE], tl.float64 if DOUBLE else tl.float32)
    if BY_COUNT:
        wanted = tl.load(given + TOP_K).to(tl.int32)
        last = reach(row, peak, cooling, vocab, wanted, False, TEMPERED, DOUBLE, TILE)
    if BY_MASS:
        sums = none
        for start in range(0, vocab, TILE):
            key, mass = weighed(row, start + lane, peak, cooling, vocab, TEMPERED, DOUBLE)
            sums += tl.where(key <= last, mass, none)
        whole = tl.sum(sums, 0)
        wanted_mass = given_float(given, TOP_P, DOUBLE) * whole
        last = reach(row, peak, cooling, vocab, wanted_mass, True, TEMPERED, DOUBLE, TILE)
        before, each, ties = none, none, tl.zeros([TILE], tl.int32)
        for start in range(0, vocab, TILE):
            token = start + lane
            key, mass = weighed(row, token, peak, cooling, vocab, TEMPERED, DOUBLE)
            before += tl.where(key < last, mass, none)
            each = tl.maximum(each, tl.where(key == last, mass, none))
            ties += ((key == last) & (token < vocab)).to(tl.int32)
        nearer, step, tied = tl.sum(before, 0), tl.max(each, 0), tl.sum(ties, 0)
        needed = tl.ceil((wanted_mass - nearer) / tl.where(step > 0, step, 1.0)).to(tl.int32)
        needed = tl.minimum(tl.maximum(needed, 1), tied)
        over = nearer + needed.to(step.dtype) * step - wanted_mass
        slack = margin * whole
        near = ((over < slack) | (step - over < slack)).to(tl.int32)
        first = lowest_of_highest(row, peak, cooling, vocab, last, needed, TEMPERED, DOUBLE, TILE)
    if BY_FLOOR:
        floor = given_float(given, MIN_P, DOUBLE)
        furthest, doubt = tl.zeros([TILE], last.dtype), tl.zeros([TILE], tl.int32)
        for start in range(0, vocab, TILE):
            key, mass = weighed(row, start + lane, peak, cooling, vocab, TEMPERED, DOUBLE)
            able = (mass >= floor) & (key <= last)
            furthest = tl.maximum(furthest, tl.where(able, key, tl.zeros([TILE], last.dtype)))
            doubt |= ((tl.abs(mass - floor) <= margin * floor) & (key > 0)).to(tl.int32)
        bound = tl.max(furthest, 0)
        first = tl.where(bound < last, 0, first)
        last = tl.minimum(bound, last)
        near |= tl.max(doubt, 0)
    sums, edge = none, tl.zeros([TILE], tl.int32)
    for start in range(0, vocab, TILE):
        token = start + lane
        key, mass = weighed(row, token, peak, cooling, vocab, TEMPERED, DOUBLE)
        sums += tl.where(kept(key, token, last, first), mass, none)
        # So near to the edge that a division rounded otherwise would have made it a tie.
        apart = tl.where(key < last, last - key, key - last)
        edge |= ((apart > 0) & (apart <= 2)).to(tl.int32)
    if BY_COUNT or BY_MASS:
        near |= tl.max(edge, 0)
    tl.store(bounds + node * 3, last.to(tl.int64))
    tl.store(bounds + node * 3 + 1, first + zero.to(tl.int64))
    tl.store(bounds + node * 3 + 2, near + zero.to(tl.int64))
    tl.store(masses + node, tl.sum(sums, 0))
