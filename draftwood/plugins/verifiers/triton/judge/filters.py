"""Where top-k, top-p and min-p cut a row, and the mass that remains.

A threshold is found without a sort, two bits at a time as in a radix select: each loop over the row
sums the tokens up to three keys. A key is a token's distance from the row's maximum in the order
of floating-point numbers, so equal logits have equal keys. Ties at a threshold are decided as in
`core.distributions`: top-k keeps all of them, top-p those with the highest ids."""

import triton
import triton.language as tl

from draftwood.plugins.verifiers.triton.judge.buffers import (
    MARGIN,
    MIN_P,
    TOP_K,
    TOP_P,
    FilterBounds,
    Matrix,
    RowMax,
    Shape,
)
from draftwood.plugins.verifiers.triton.judge.rows import (
    Row,
    distance_and_mass,
    input_float,
    invert_bits,
    is_kept,
    load_row,
    order_bits,
)


@triton.jit
def smallest_distance(
    row: Row, needed: tl.tensor, BY_MASS: tl.constexpr, MODE: tl.constexpr
) -> tl.tensor:
    """The smallest distance such that the tokens up to it sum to `needed`, by mass or by count."""
    tile: tl.constexpr = MODE.value.tile
    lane = tl.arange(0, tile)
    distance = order_bits(row.max - row.max, MODE.value.double) * 0
    bits = 64 if MODE.value.double else 32
    for digit in range(0, bits, 2):
        step = (distance * 0 + 1) << (bits - 2 - digit)
        end = distance + (step - 1)
        zero = tl.zeros([tile], MODE.value.real if BY_MASS else tl.int32)
        low, middle, high = zero, zero, zero
        for start in range(0, row.vocab, MODE.value.tile):
            token = start + lane
            key, mass = distance_and_mass(row, token, MODE)
            weight = mass if BY_MASS else (token < row.vocab).to(tl.int32)
            low += tl.where(key <= end, weight, zero)
            middle += tl.where(key <= end + step, weight, zero)
            high += tl.where(key <= end + 2 * step, weight, zero)
        short = (tl.sum(low, 0) < needed).to(tl.int32)
        short += (tl.sum(middle, 0) < needed).to(tl.int32)
        short += (tl.sum(high, 0) < needed).to(tl.int32)
        distance += step * short.to(step.dtype)
    return distance


@triton.jit
def lowest_kept_id(
    row: Row, threshold: tl.tensor, needed: tl.tensor, MODE: tl.constexpr
) -> tl.tensor:
    """Of the tokens at distance `threshold`, the lowest id among the `needed` highest."""
    tile: tl.constexpr = MODE.value.tile
    lane = tl.arange(0, tile)
    seen, first = needed - needed, needed - needed
    tiles = tl.cdiv(row.vocab, MODE.value.tile)
    for back in range(tiles):
        token = (tiles - 1 - back) * MODE.value.tile + lane
        key, _ = distance_and_mass(row, token, MODE)
        tied = ((key == threshold) & (token < row.vocab)).to(tl.int32)
        ties = tl.sum(tied, 0)
        rank = seen + ties - tl.cumsum(tied, 0) + tied
        chosen = (tied > 0) & (rank == needed)
        first = tl.maximum(first, tl.max(tl.where(chosen, token, 0), 0))
        seen += ties
    return first


@triton.jit
def filters_kernel(
    logits: Matrix,
    row_max: RowMax,
    inputs: tl.tensor,
    filters: FilterBounds,
    shape: Shape,
    MODE: tl.constexpr,
) -> None:
    """What filters keep of each row. Grid: (N+1,)."""
    node = tl.program_id(0).to(tl.int64)
    tile: tl.constexpr = MODE.value.tile
    lane = tl.arange(0, tile)
    row = load_row(logits, row_max, inputs, node, shape, MODE)
    margin = input_float(inputs, MARGIN, MODE.value.double)
    zero = order_bits(row.max - row.max, MODE.value.double) * 0
    last, first, near = invert_bits(zero, MODE.value.double), 0, 0
    none = tl.zeros([tile], MODE.value.real)
    if MODE.value.top_k:
        last = smallest_distance(row, tl.load(inputs + TOP_K).to(tl.int32), False, MODE)
    if MODE.value.top_p:
        sums = none
        for start in range(0, row.vocab, MODE.value.tile):
            key, mass = distance_and_mass(row, start + lane, MODE)
            sums += tl.where(key <= last, mass, none)
        whole = tl.sum(sums, 0)
        needed_mass = input_float(inputs, TOP_P, MODE.value.double) * whole
        last = smallest_distance(row, needed_mass, True, MODE)
        before, each, ties = none, none, tl.zeros([tile], tl.int32)
        for start in range(0, row.vocab, MODE.value.tile):
            token = start + lane
            key, mass = distance_and_mass(row, token, MODE)
            before += tl.where(key < last, mass, none)
            each = tl.maximum(each, tl.where(key == last, mass, none))
            ties += ((key == last) & (token < row.vocab)).to(tl.int32)
        nearer, step, tied = tl.sum(before, 0), tl.max(each, 0), tl.sum(ties, 0)
        needed = tl.ceil((needed_mass - nearer) / tl.where(step > 0, step, 1.0)).to(tl.int32)
        needed = tl.minimum(tl.maximum(needed, 1), tied)
        over = nearer + needed.to(step.dtype) * step - needed_mass
        slack = margin * whole
        near = ((over < slack) | (step - over < slack)).to(tl.int32)
        first = lowest_kept_id(row, last, needed, MODE)
    if MODE.value.min_p:
        floor = input_float(inputs, MIN_P, MODE.value.double)
        no_distance = tl.zeros([tile], last.dtype)
        furthest, near_floor = no_distance, tl.zeros([tile], tl.int32)
        for start in range(0, row.vocab, MODE.value.tile):
            key, mass = distance_and_mass(row, start + lane, MODE)
            passes = (mass >= floor) & (key <= last)
            furthest = tl.maximum(furthest, tl.where(passes, key, no_distance))
            near_floor |= ((tl.abs(mass - floor) <= margin * floor) & (key > 0)).to(tl.int32)
        bound = tl.max(furthest, 0)
        first = tl.where(bound < last, 0, first)
        last = tl.minimum(bound, last)
        near |= tl.max(near_floor, 0)
    sums, near_threshold = none, tl.zeros([tile], tl.int32)
    for start in range(0, row.vocab, MODE.value.tile):
        token = start + lane
        key, mass = distance_and_mass(row, token, MODE)
        sums += tl.where(is_kept(key, token, last, first), mass, none)
        # A division rounded differently would have made these tokens tie with the threshold.
        apart = tl.where(key < last, last - key, key - last)
        near_threshold |= ((apart > 0) & (apart <= 2)).to(tl.int32)
    if MODE.value.top_k | MODE.value.top_p:
        near |= tl.max(near_threshold, 0)
    tl.store(filters.bounds + node * 3, last.to(tl.int64))
    tl.store(filters.bounds + node * 3 + 1, first + zero.to(tl.int64))
    tl.store(filters.bounds + node * 3 + 2, near + zero.to(tl.int64))
    tl.store(filters.masses + node, tl.sum(sums, 0))
