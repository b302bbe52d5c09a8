"""`match` on the device: every node draws from its own distribution, in tiles, before any walk."""

import triton
import triton.language as tl

from draftwood.plugins.verifiers.triton.judge.draws import log_noise
from draftwood.plugins.verifiers.triton.judge.rows import (
    COOLING,
    HEADER,
    given_float,
    kept,
    load_row,
    ordered,
    row_peak,
    scores,
)


@triton.jit
def race_kernel(
    logits: tl.tensor,
    stride: tl.tensor,
    peaks: tl.tensor,
    given: tl.tensor,
    depths: tl.tensor,
    bounds: tl.tensor,
    bests: tl.tensor,
    seconds: tl.tensor,
    winners: tl.tensor,
    vocab: tl.tensor,
    splits: tl.tensor,
    TEMPERED: tl.constexpr,
    FILTERED: tl.constexpr,
    CHUNK: tl.constexpr,
    TILE: tl.constexpr,
    SPAN: tl.constexpr,
    DOUBLE: tl.constexpr,
) -> None:
    """The two best of log p(x) - log E(x) in each chunk of each row, and the best one's token.

    given: after its header, the key of the draw at each depth. bests, seconds: (N+1, splits).
    winners: (N+1, splits) int64. log p is up to the row's constant. Grid: (N+1, splits).
    """
    node, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    lane = tl.arange(0, TILE)
    row = logits + node * stride
    peak = row_peak(peaks, node, splits, SPAN)
    cooling = given_float(given, COOLING, DOUBLE)
    key = tl.load(given + HEADER + tl.load(depths + node)).to(tl.uint64, bitcast=True)
    top = peak - peak if TEMPERED else peak
    if FILTERED:
        last = tl.load(bounds + node * 3).to(tl.uint64 if DOUBLE else tl.uint32)
        first = tl.load(bounds + node * 3 + 1)
    lowest = tl.full([TILE], -float("inf"), tl.float64 if DOUBLE else tl.float32)
    best, second, winner = lowest, lowest, lane
    for start in range(0, CHUNK, TILE):
        token = split * CHUNK + start + lane
        score = scores(load_row(row, token, vocab, DOUBLE), peak, cooling, TEMPERED, DOUBLE)
        value = score - top - log_noise(key, token, DOUBLE)
        if FILTERED:
            distance = ordered(top, DOUBLE) - ordered(score, DOUBLE)
            value = tl.where(kept(distance, token, last, first), value, lowest)
        second = tl.maximum(second, tl.minimum(best, value))
        winner = tl.where(value > best, token, winner)
        best = tl.maximum(best, value)
    highest = tl.max(best, 0)
    place = tl.min(tl.where(best == highest, winner, 0x7FFFFFFF), 0)
    others = tl.maximum(second, tl.where(winner == place, lowest, best))
    at = node * splits + split
    tl.store(bests + at, highest)
    tl.store(seconds + at, tl.max(others, 0))
    tl.store(winners + at, place.to(tl.int64))
