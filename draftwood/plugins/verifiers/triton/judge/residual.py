"""`ratio` and `multi_round` on the device.

A node's residual after the rejection of its children does not depend on any draw. So every node
computes its own, child by child, before the walk. The walk then reads one flag per child, and one
race over the last node's residual gives the bonus token. `ratio` is the same on chains."""

import triton
import triton.language as tl

from draftwood.plugins.verifiers.triton.judge.buffers import (
    BONUS,
    COUNT,
    HEADER,
    MARGIN,
    NEAR_TIES,
    PATH,
    BonusRace,
    FilterBounds,
    Matrix,
    Residuals,
    RowMax,
    Shape,
    TreeColumns,
)
from draftwood.plugins.verifiers.triton.judge.draws import log_noise
from draftwood.plugins.verifiers.triton.judge.rows import (
    Cut,
    Row,
    distance_and_mass,
    input_float,
    is_kept,
    load_cut,
    load_row,
)


@triton.jit
def probs(row: Row, cut: Cut, token: tl.tensor, MODE: tl.constexpr) -> tl.tensor:
    """p of a block of tokens; if greedy, 1 at the row's maximum."""
    if MODE.value.greedy:
        return (token == row.max_token).to(MODE.value.real)
    distance, mass = distance_and_mass(row, token, MODE)
    inside = is_kept(distance, token, cut.last, cut.first) & (token < row.vocab)
    return tl.where(inside, mass / cut.mass, mass - mass)


@triton.jit
def residual_kernel(
    logits: Matrix,
    row_max: RowMax,
    inputs: tl.tensor,
    tree: TreeColumns,
    q: Matrix,
    filters: FilterBounds,
    residuals: Residuals,
    shape: Shape,
    MODE: tl.constexpr,
) -> None:
    """Whether each child is accepted if its earlier siblings are rejected, and its parent's
    residual after all of them.

    inputs: after the header, for each node the bits of the uniform that it is compared with, then
    for each node the key of the bonus draw. q: row i-1 is the distribution node i was drawn from.
    Grid: (N+1,).
    """
    node = tl.program_id(0).to(tl.int64)
    tile: tl.constexpr = MODE.value.tile
    lane, vocab = tl.arange(0, tile), shape.vocab
    own = residuals.probs + node * vocab
    row = load_row(logits, row_max, inputs, node, shape, MODE)
    cut = load_cut(filters, node, MODE)
    margin = input_float(inputs, MARGIN, MODE.value.double).to(tl.float64)
    for start in range(0, vocab, MODE.value.tile):
        token = start + lane
        tl.store(own + token, probs(row, cut, token, MODE), mask=token < vocab)
    zero = tl.zeros([tile], MODE.value.real)
    inverse, compared = margin * 0 + 1.0, 0
    for child in range(1, shape.size):
        if tl.load(tree.parents + child) == node:
            drawn = tl.load(tree.tokens + child)
            child_q = q.data + (node - node + child - 1) * q.stride  # in 64 bits
            sums, chances = zero, zero
            for start in range(0, vocab, MODE.value.tile):
                token = start + lane
                p = tl.load(own + token, mask=token < vocab, other=0.0)
                other = tl.load(child_q + token, mask=token < vocab, other=0.0).to(p.dtype)
                sums += tl.maximum(p - other, 0.0)
                chances += tl.where(token == drawn, p, zero)
            total, chance = tl.sum(sums, 0), tl.sum(chances, 0).to(tl.float64)
            origin = probs(row, cut, drawn, MODE)
            uniform = tl.load(inputs + HEADER + child).to(tl.float64, bitcast=True)
            needed = uniform * tl.load(child_q + drawn).to(tl.float64)
            # p is right up to a share of the *first* p; every residual divides that by its sum.
            slack = margin * (compared + 1) * inverse * (origin + chance)
            flag = (needed < chance).to(tl.int64)
            if MODE.value.sampled:
                flag += tl.where(tl.abs(needed - chance) > slack, 0, 2)
            tl.store(residuals.flags + child, flag)
            if total > 0:
                for start in range(0, vocab, MODE.value.tile):
                    token = start + lane
                    p = tl.load(own + token, mask=token < vocab, other=0.0)
                    other = tl.load(child_q + token, mask=token < vocab, other=0.0).to(p.dtype)
                    tl.store(own + token, tl.maximum(p - other, 0.0) / total, mask=token < vocab)
            divisor = tl.where(total > 0, total, 1.0)
            inverse *= tl.where(total > 0, 1.0 / divisor, float("inf")).to(tl.float64)
            compared += 1
    tl.store(residuals.scales + node * 2, inverse)
    tl.store(residuals.scales + node * 2 + 1, compared + 0.0)


@triton.jit
def bonus_race_kernel(
    logits: Matrix,
    row_max: RowMax,
    inputs: tl.tensor,
    filters: FilterBounds,
    residuals: Residuals,
    decision: tl.tensor,
    bonus_race: BonusRace,
    shape: Shape,
    MODE: tl.constexpr,
) -> None:
    """The race over the last node's residual, in chunks. Grid: (splits,)."""
    split, splits = tl.program_id(0), shape.splits
    tile: tl.constexpr = MODE.value.tile
    lane, vocab = tl.arange(0, tile), shape.vocab
    node = tl.load(decision + PATH + tl.load(decision + COUNT) - 1)
    own = residuals.probs + node * vocab
    row = load_row(logits, row_max, inputs, node, shape, MODE)
    cut = load_cut(filters, node, MODE)
    inverse = tl.load(residuals.scales + node * 2)
    compared = tl.load(residuals.scales + node * 2 + 1)
    margin = input_float(inputs, MARGIN, MODE.value.double).to(tl.float64)
    max_slack = tl.minimum(margin * (compared + 1) * inverse, 1e30).to(MODE.value.real)
    key = tl.load(inputs + HEADER + shape.size + node).to(tl.uint64, bitcast=True)
    lowest = tl.full([tile], -float("inf"), MODE.value.real)
    best, least, most, others, best_token = lowest, lowest, lowest, lowest, lane
    for start in range(0, MODE.value.chunk, MODE.value.tile):
        token = split * MODE.value.chunk + start + lane
        p = tl.load(own + token, mask=token < vocab, other=0.0)
        origin = probs(row, cut, token, MODE)
        slack = tl.zeros_like(p) if MODE.value.greedy else max_slack * origin
        noise = log_noise(key, token, MODE.value.double)
        value = log_or_lowest(p, lowest) - noise
        high = log_or_lowest(p + slack, lowest) - noise
        better = value > best
        others = tl.maximum(others, tl.where(better, most, high))
        best_token = tl.where(better, token, best_token)
        least = tl.where(better, log_or_lowest(p - slack, lowest) - noise, least)
        most = tl.where(better, high, most)
        best = tl.where(better, value, best)
    highest = tl.max(best, 0)
    bonus = tl.min(tl.where(best == highest, best_token, 0x7FFFFFFF), 0)
    others = tl.maximum(others, tl.where(best_token == bonus, lowest, most))
    tl.store(bonus_race.candidates + split, highest)
    tl.store(bonus_race.candidates + splits + split, select_real(least, best_token, bonus, lowest))
    tl.store(
        bonus_race.candidates + 2 * splits + split, select_real(most, best_token, bonus, lowest)
    )
    tl.store(bonus_race.candidates + 3 * splits + split, tl.max(others, 0))
    tl.store(bonus_race.tokens + split, bonus.to(tl.int64))


@triton.jit
def log_or_lowest(p: tl.tensor, lowest: tl.tensor) -> tl.tensor:
    """log p, -inf where p is not positive."""
    return tl.where(p > 0, tl.log(tl.where(p > 0, p, p - p + 1.0)), lowest)


@triton.jit
def select_real(
    values: tl.tensor, winner: tl.tensor, place: tl.tensor, lowest: tl.tensor
) -> tl.tensor:
    """The value in the lane whose token is `place`; a sum would turn infinities into NaN."""
    return tl.max(tl.where(winner == place, values, lowest), 0)


@triton.jit
def bonus_kernel(
    bonus_race: BonusRace, decision: tl.tensor, shape: Shape, MODE: tl.constexpr
) -> None:
    """The winner among the chunks, and whether rounding could have let another win. Grid: (1,)."""
    split, splits = tl.arange(0, MODE.value.span), shape.splits
    inside = split < splits
    values = bonus_race.candidates
    best = tl.load(values + split, mask=inside, other=-float("inf"))
    highest = tl.max(best, 0)
    chunk = tl.min(tl.where(best == highest, split, MODE.value.span), 0)
    least = tl.load(values + splits + chunk)
    most = tl.load(values + 2 * splits + split, mask=inside & (split != chunk), other=-float("inf"))
    others = tl.load(values + 3 * splits + split, mask=inside, other=-float("inf"))
    tl.store(decision + BONUS, tl.load(bonus_race.tokens + chunk))
    if MODE.value.sampled:
        close = tl.maximum(tl.max(most, 0), tl.max(others, 0)) >= least
        tl.store(decision + NEAR_TIES, tl.load(decision + NEAR_TIES) + close.to(tl.int64))
