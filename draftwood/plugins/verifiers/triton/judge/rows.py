"""A node's row of logits: its maximum, and its distribution after temperature and filters."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from draftwood.plugins.verifiers.triton.judge.buffers import (
    INVERSE_TEMPERATURE,
    FilterBounds,
    Matrix,
    RowMax,
    Shape,
)


class Row(NamedTuple):
    """A node's logits (pointer to the first), their maximum, its token and 1 / temperature."""

    data: Any
    max: Any
    max_token: Any
    inverse_temperature: Any
    vocab: Any


class Cut(NamedTuple):
    """What filters keep of a row: FilterBounds of one node."""

    last: Any
    first: Any
    mass: Any


@triton.jit
def input_float(inputs: tl.tensor, index: tl.constexpr, DOUBLE: tl.constexpr) -> tl.tensor:
    word = tl.load(inputs + index)
    if DOUBLE:
        return word.to(tl.float64, bitcast=True)
    return word.to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def load_logits(row: tl.tensor, token: tl.tensor, vocab: tl.tensor, DOUBLE: tl.constexpr) -> Any:
    """Logits of a block of tokens, -inf past the vocabulary."""
    logits = tl.load(row + token, mask=token < vocab, other=-float("inf"))
    return logits.to(tl.float64) if DOUBLE else logits.to(tl.float32)


@triton.jit
def row_max_kernel(logits: Matrix, row_max: RowMax, shape: Shape, MODE: tl.constexpr) -> None:
    """The maximum of each chunk of each row, the first of equal logits. Grid: (N+1, splits)."""
    node, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    tile: tl.constexpr = MODE.value.tile
    lane = tl.arange(0, tile)
    row = logits.data + node * logits.stride
    best = load_logits(row, split * MODE.value.chunk + lane, shape.vocab, MODE.value.double)
    has_nan = (best != best).to(tl.int32)
    best_token = split * MODE.value.chunk + lane
    for start in range(MODE.value.tile, MODE.value.chunk, MODE.value.tile):
        token = split * MODE.value.chunk + start + lane
        value = load_logits(row, token, shape.vocab, MODE.value.double)
        has_nan |= (value != value).to(tl.int32)
        best_token = tl.where(value > best, token, best_token)
        best = tl.where(value > best, value, best)
    highest = tl.max(tl.where(best == best, best, -float("inf")), 0)
    best_token = tl.min(tl.where(best == highest, best_token, 0x7FFFFFFF), 0)
    highest = tl.where(tl.max(has_nan, 0) > 0, float("inf"), highest)
    tl.store(row_max.maxima + node * shape.splits + split, highest)
    tl.store(row_max.tokens + node * shape.splits + split, best_token.to(tl.int64))


@triton.jit
def load_row(
    logits: Matrix,
    row_max: RowMax,
    inputs: tl.tensor,
    node: tl.tensor,
    shape: Shape,
    MODE: tl.constexpr,
) -> Row:
    """Reduces the maxima of the row's chunks, the first of equal logits."""
    split = tl.arange(0, MODE.value.span)
    inside = split < shape.splits
    at = node * shape.splits + split
    values = tl.load(row_max.maxima + at, mask=inside, other=-float("inf"))
    highest = tl.max(values, 0)
    tokens = tl.load(row_max.tokens + at, mask=inside, other=0x7FFFFFFF)
    return Row(
        logits.data + node * logits.stride,
        highest,
        tl.min(tl.where(values == highest, tokens, 0x7FFFFFFF), 0),
        input_float(inputs, INVERSE_TEMPERATURE, MODE.value.double),
        shape.vocab,
    )


@triton.jit
def load_cut(filters: FilterBounds, node: tl.tensor, MODE: tl.constexpr) -> Cut:
    last = tl.load(filters.bounds + node * 3).to(tl.uint64 if MODE.value.double else tl.uint32)
    return Cut(last, tl.load(filters.bounds + node * 3 + 1), tl.load(filters.masses + node))


@triton.jit
def max_score(row: Row, MODE: tl.constexpr) -> tl.tensor:
    return row.max - row.max if MODE.value.tempered else row.max


@triton.jit
def scores(row: Row, token: tl.tensor, MODE: tl.constexpr) -> tl.tensor:
    """Logits over the temperature, largest 0; unchanged at temperature 1, as in
    `core.distributions`. torch multiplies by 1 / temperature on a GPU, too."""
    logits = load_logits(row.data, token, row.vocab, MODE.value.double)
    return (logits - row.max) * row.inverse_temperature if MODE.value.tempered else logits


@triton.jit
def score_distance(row: Row, score: tl.tensor, MODE: tl.constexpr) -> tl.tensor:
    """Distance from the row's maximum in the order of floating-point numbers."""
    return order_bits(max_score(row, MODE), MODE.value.double) - order_bits(
        score, MODE.value.double
    )


@triton.jit
def distance_and_mass(row: Row, token: tl.tensor, MODE: tl.constexpr) -> Any:
    """`score_distance` of a block of tokens, and p relative to the largest p."""
    score = scores(row, token, MODE)
    return score_distance(row, score, MODE), tl.exp(score - max_score(row, MODE))


@triton.jit
def order_bits(score: tl.tensor, DOUBLE: tl.constexpr) -> tl.tensor:
    """Unsigned integers in the order of the scores; -0.0 counts as 0.0."""
    if DOUBLE:
        wide = (score + 0.0).to(tl.uint64, bitcast=True)
        return tl.where(wide >> 63 > 0, invert_bits(wide, DOUBLE), wide | 0x8000000000000000)
    bits = (score + 0.0).to(tl.uint32, bitcast=True)
    return tl.where(bits >> 31 > 0, invert_bits(bits, DOUBLE), bits | 0x80000000)


@triton.jit
def invert_bits(bits: tl.tensor, DOUBLE: tl.constexpr) -> tl.tensor:
    """~bits of unsigned integers, which Triton 3.7's interpreter cannot compute."""
    if DOUBLE:
        return bits ^ 0xFFFFFFFFFFFFFFFF
    return bits ^ 0xFFFFFFFF


@triton.jit
def is_kept(distance: tl.tensor, token: tl.tensor, last: tl.tensor, first: tl.tensor) -> Any:
    """Whether filters keep a token: it is nearer to the maximum than `last`, or as near and its
    id is at least `first`."""
    return (distance < last) | ((distance == last) & (token >= first))
