"""`match` on the device: every node draws from its own distribution, before the walk."""

import triton
import triton.language as tl

from draftwood.plugins.verifiers.triton.judge.buffers import (
    HEADER,
    FilterBounds,
    Matrix,
    Race,
    RowMax,
    Shape,
)
from draftwood.plugins.verifiers.triton.judge.draws import log_noise
from draftwood.plugins.verifiers.triton.judge.rows import (
    is_kept,
    load_row,
    max_score,
    score_distance,
    scores,
)


@triton.jit
def race_kernel(
    logits: Matrix,
    row_max: RowMax,
    inputs: tl.tensor,
    depths: tl.tensor,
    filters: FilterBounds,
    race: Race,
    shape: Shape,
    MODE: tl.constexpr,
) -> None:
    """The two largest log p(x) - log E(x) of each chunk of each row, up to the row's constant.

    inputs: after the header, the key of the draw at each depth. Grid: (N+1, splits).
    """
    node, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    tile: tl.constexpr = MODE.value.tile
    lane = tl.arange(0, tile)
    row = load_row(logits, row_max, inputs, node, shape, MODE)
    key = tl.load(inputs + HEADER + tl.load(depths + node)).to(tl.uint64, bitcast=True)
    if MODE.value.filtered:
        last = tl.load(filters.bounds + node * 3).to(tl.uint64 if MODE.value.double else tl.uint32)
        first = tl.load(filters.bounds + node * 3 + 1)
    lowest = tl.full([tile], -float("inf"), MODE.value.real)
    best, second, best_token = lowest, lowest, lane
    for start in range(0, MODE.value.chunk, MODE.value.tile):
        token = split * MODE.value.chunk + start + lane
        score = scores(row, token, MODE)
        value = score - max_score(row, MODE) - log_noise(key, token, MODE.value.double)
        if MODE.value.filtered:
            distance = score_distance(row, score, MODE)
            value = tl.where(is_kept(distance, token, last, first), value, lowest)
        second = tl.maximum(second, tl.minimum(best, value))
        best_token = tl.where(value > best, token, best_token)
        best = tl.maximum(best, value)
    highest = tl.max(best, 0)
    winner = tl.min(tl.where(best == highest, best_token, 0x7FFFFFFF), 0)
    others = tl.maximum(second, tl.where(best_token == winner, lowest, best))
    at = node * shape.splits + split
    tl.store(race.best + at, highest)
    tl.store(race.second + at, tl.max(others, 0))
    tl.store(race.tokens + at, winner.to(tl.int64))
