"""A node's row of logits: where it peaks, and its distribution after temperature and filters.

`given` is what the host sends a judge, in one int64 tensor: 1 / temperature, top_p, min_p and the
margin, each as the bits of a float as wide as the arithmetic, then top_k, then whatever the rule
draws with.
"""

import triton
import triton.language as tl

COOLING = tl.constexpr(0)
TOP_P = tl.constexpr(1)
MIN_P = tl.constexpr(2)
MARGIN = tl.constexpr(3)
TOP_K = tl.constexpr(4)
HEADER = tl.constexpr(5)


@triton.jit
def given_float(given: tl.tensor, place: tl.constexpr, DOUBLE: tl.constexpr) -> tl.tensor:
    word = tl.load(given + place)
    if DOUBLE:
        return word.to(tl.float64, bitcast=True)
    return word.to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def load_row(row: tl.tensor, token: tl.tensor, vocab: tl.tensor, DOUBLE: tl.constexpr) -> tl.tensor:
    """Logits of a block of tokens, -inf past the vocabulary. row: pointer to its first logit."""
    logits = tl.load(row + token, mask=token < vocab, other=-float("inf"))
    return logits.to(tl.float64) if DOUBLE else logits.to(tl.float32)


@triton.jit
def peaks_kernel(
    logits: tl.tensor,
    stride: tl.tensor,
    peaks: tl.tensor,
    places: tl.tensor,
    vocab: tl.tensor,
    splits: tl.tensor,
    CHUNK: tl.constexpr,
    TILE: tl.constexpr,
    DOUBLE: tl.constexpr,
) -> None:
    """The largest logit and its token (the first of equal ones) of each chunk of each row.

    logits: (N+1, V), rows `stride` apart. peaks: (N+1, splits), +inf for a chunk with NaN.
    places: (N+1, splits) int64. Grid: (N+1, splits).
    """
    node, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    lane = tl.arange(0, TILE)
    row = logits + node * stride
    best = load_row(row, split * CHUNK + lane, vocab, DOUBLE)
    broken = (best != best).to(tl.int32)
    place = split * CHUNK + lane
    for start in range(TILE, CHUNK, TILE):
        token = split * CHUNK + start + lane
        value = load_row(row, token, vocab, DOUBLE)
        broken |= (value != value).to(tl.int32)
        place = tl.where(value > best, token, place)
        best = tl.where(value > best, value, best)
    peak = tl.max(tl.where(best == best, best, -float("inf")), 0)
    place = tl.min(tl.where(best == peak, place, 0x7FFFFFFF), 0)
    peak = tl.where(tl.max(broken, 0) > 0, float("inf"), peak)
    tl.store(peaks + node * splits + split, peak)
    tl.store(places + node * splits + split, place.to(tl.int64))


@triton.jit
def row_peak(peaks: tl.tensor, node: tl.tensor, splits: tl.tensor, SPAN: tl.constexpr) -> tl.tensor:
    """A row's largest logit from those of its chunks; SPAN is at least their number."""
    split = tl.arange(0, SPAN)
    values = tl.load(peaks + node * splits + split, mask=split < splits, other=-float("inf"))
    return tl.max(values, 0)


@triton.jit
def row_place(
    peaks: tl.tensor,
    places: tl.tensor,
    node: tl.tensor,
    splits: tl.tensor,
    SPAN: tl.constexpr,
) -> tl.tensor:
    """The token of a row's largest logit, the first of equal ones."""
    split = tl.arange(0, SPAN)
    inside = split < splits
    values = tl.load(peaks + node * splits + split, mask=inside, other=-float("inf"))
    tokens = tl.load(places + node * splits + split, mask=inside, other=0x7FFFFFFF)
    return tl.min(tl.where(values == tl.max(values, 0), tokens, 0x7FFFFFFF), 0)


@triton.jit
def scores(
    logits: tl.tensor,
    peak: tl.tensor,
    cooling: tl.tensor,
    TEMPERED: tl.constexpr,
    DOUBLE: tl.constexpr,
) -> tl.tensor:
    """Logits over the temperature, largest 0; left alone at temperature 1, as by
    `core.distributions`. cooling: 1 / temperature, by which torch multiplies on a GPU."""
    return (logits - peak) * cooling if TEMPERED else logits


@triton.jit
def ordered(score: tl.tensor, DOUBLE: tl.constexpr) -> tl.tensor:
    """Unsigned integers in the order of the scores; -0.0 counts as 0.0."""
    if DOUBLE:
        wide = (score + 0.0).to(tl.uint64, bitcast=True)
        return tl.where(wide >> 63 > 0, flipped(wide, DOUBLE), wide | 0x8000000000000000)
    bits = (score + 0.0).to(tl.uint32, bitcast=True)
    return tl.where(bits >> 31 > 0, flipped(bits, DOUBLE), bits | 0x80000000)


@triton.jit
def flipped(bits: tl.tensor, DOUBLE: tl.constexpr) -> tl.tensor:
    """Every bit of unsigned integers turned over. Triton 3.7's interpreter cannot invert them: it
    makes their ones of -1."""
    if DOUBLE:
        return bits ^ 0xFFFFFFFFFFFFFFFF
    return bits ^ 0xFFFFFFFF


@triton.jit
def kept(
    distance: tl.tensor,
    token: tl.tensor,
    last: tl.tensor,
    first: tl.tensor,
) -> tl.tensor:
    """Whether filters keep a token: it is nearer to the peak than `last`, or as near and its id
    is at least `first`."""
    return (distance < last) | ((distance == last) & (token >= first))
