"""Tree attention: few queries over a long context, and over each other as a tree.

The query heads that share a K/V head are rows of one program, so that it loads each key once. The
keys are the committed rows and, behind them in the same buffer, the nodes. The third axis of the
grid splits the keys, and a second kernel combines the splits (Flash-Decoding, Dao et al. 2023). The
soft-max is computed block by block in float32 (Milakov and Gimelshein 2018, arXiv 1805.02867).
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
WORD = tl.constexpr(32)  # nodes per word of ancestors


@triton.jit
def tree_attention_kernel(
    query: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    out: tl.tensor,
    partial: tl.tensor,
    weights: tl.tensor,
    context: tl.tensor,
    depths: tl.tensor,
    ancestors: tl.tensor,
    query_head_stride: tl.tensor,
    query_row_stride: tl.tensor,
    key_head_stride: tl.tensor,
    key_row_stride: tl.tensor,
    value_head_stride: tl.tensor,
    value_row_stride: tl.tensor,
    rows: tl.tensor,
    first: tl.tensor,
    words: tl.tensor,
    window: tl.tensor,
    inner: tl.tensor,
    outer: tl.tensor,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    TREE: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    SPLIT: tl.constexpr,
) -> None:
    """Attention of `rows` nodes over `context` committed rows and the nodes behind them.

    query: (heads, rows, DIM). keys, values: (heads / GROUP, capacity, DIM); `context` rows are
    committed, and node j is in row context + j. The rows are nodes first, first + 1, ...
    out: (rows, heads, DIM), in the dtype of the query; written unless SPLIT.
    partial, weights: (splits, rows, heads, DIM) and (splits, rows, heads) float32, written if
    SPLIT: each split's soft-max and the base-2 logarithm of its denominator, -inf without a key.
    context: () int32; on the device, so that a replayed launch reads the current length.
    depths, ancestors: (nodes,) integers and (rows, words) int32 if TREE: bit j % 32 of word j // 32
    says whether the row sees node j; CAUSAL: it sees no later node. Without TREE a chain: node i
    has depth i and sees the nodes up to itself.
    window: Positions that a row sees, its own included, if WINDOWED. inner, outer: as in `scores`.
    Grid: (ceil(rows * GROUP / BLOCK_M), heads / GROUP, splits). The first axis runs fastest, so
    that programs that read the same keys run at the same time.
    """
    block, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    heads, splits = tl.num_programs(1) * GROUP, tl.num_programs(2)
    length = tl.load(context)
    # Padding rows and, below, padding columns repeat the last one: cheaper than masks.
    packed = tl.minimum(block * BLOCK_M + tl.arange(0, BLOCK_M), rows * GROUP - 1)
    row = packed // GROUP
    head = kv_head * GROUP + packed % GROUP
    depth = first + row
    if TREE:
        depth = tl.load(depths + first + row).to(tl.int32)
    q = load_rows(query + head[:, None] * query_head_stride, query_row_stride, row, DIM, BLOCK_D)
    keys += kv_head.to(tl.int64) * key_head_stride
    values += kv_head.to(tl.int64) * value_head_stride

    # No row of this program sees a key before `begin` or a node after `final`. All rows see the
    # context from `clear` on.
    final = first + rows - 1
    if CAUSAL:
        final = tl.minimum(first + (block * BLOCK_M + BLOCK_M - 1) // GROUP, final)
    # Tensors: with plain zeros, these would be constants in Triton 3.7's interpreter.
    none = tl.full([], 0, tl.int32)
    begin, clear, skipped = none, none, none
    if WINDOWED:
        shallowest, deepest = first + block * BLOCK_M // GROUP, final
        if TREE:
            shallowest, deepest = 0, tl.max(depth, 0)
        begin = tl.maximum(0, length + shallowest - window + 1)
        clear = tl.minimum(length, tl.maximum(0, length + deepest - window + 1))
        skipped = tl.maximum(0, begin - length) // WORD
        begin = tl.minimum(begin, length)

    # The splits divide, in units of a word: whole blocks of context, which all rows see; then, word
    # by word, the edge of the window, the rest of the context, and the nodes.
    whole = (length - clear) // BLOCK_N * (BLOCK_N // WORD)
    rest = clear + whole * WORD
    edges, tails = tl.cdiv(clear - begin, WORD), tl.cdiv(length - rest, WORD)
    count = whole + edges + tails + final // WORD + 1 - skipped
    share = tl.cdiv(tl.cdiv(count, splits), BLOCK_N // WORD) * (BLOCK_N // WORD)
    low, high = split * share, tl.minimum(count, split * share + share)

    top = tl.full([BLOCK_M], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    mixed = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for unit in range(low, tl.minimum(high, whole), BLOCK_N // WORD):
        column = clear + unit * WORD + tl.arange(0, BLOCK_N)
        k = load_rows(keys, key_row_stride, column, DIM, BLOCK_D)
        v = load_rows(values, value_row_stride, column, DIM, BLOCK_D)
        score = scores(q, k, inner, outer, CAPPED)
        top, total, mixed = mix(top, total, mixed, score, v, False)

    for unit in tl.range(tl.maximum(low, whole) - whole, high - whole, num_stages=1):
        at_edge = unit < edges
        in_context = unit < edges + tails
        word = tl.maximum(unit - edges - tails, 0) + skipped
        start = tl.where(at_edge, begin + unit * WORD, rest + (unit - edges) * WORD)
        start = tl.where(in_context, start, length + word * WORD)
        stop = tl.where(at_edge, clear, tl.where(in_context, length, length + final + 1))
        lane = start + tl.arange(0, WORD)
        column = tl.minimum(lane, stop - 1)
        behind = column - length  # the node in this column; negative in the context
        k = load_rows(keys, key_row_stride, column, DIM, BLOCK_D)
        v = load_rows(values, value_row_stride, column, DIM, BLOCK_D)
        place = behind
        if TREE:
            bits = tl.load(ancestors + row * words + word)
            bits = tl.where(in_context, -1, bits)
            seen = ((bits[:, None] >> tl.arange(0, WORD)[None, :]) & 1) == 1
            if WINDOWED:
                node_depth = tl.load(depths + tl.maximum(behind, 0)).to(tl.int32)
                place = tl.where(in_context, behind, node_depth)
        else:
            seen = behind[None, :] <= depth[:, None]
        seen = seen & (lane < stop)[None, :]
        if WINDOWED:
            seen = seen & (depth[:, None] - place[None, :] < window)
        score = scores(q, k, inner, outer, CAPPED)
        score = tl.where(seen, score, -float("inf"))
        top, total, mixed = mix(top, total, mixed, score, v, True)

    line = row * heads + head
    nothing = total == 0.0
    mixed = mixed / tl.where(nothing, 1.0, total)[:, None]
    if SPLIT:
        line += split * rows * heads
        weight = tl.where(nothing, -float("inf"), top + tl.log2(tl.where(nothing, 1.0, total)))
        tl.store(weights + line, weight)
        out = partial
    at = out + line.to(tl.int64)[:, None] * DIM + tl.arange(0, BLOCK_D)[None, :]
    mixed = mixed.to(out.dtype.element_ty)
    if DIM == BLOCK_D:
        tl.store(at, mixed)
    else:
        tl.store(at, mixed, mask=(tl.arange(0, BLOCK_D) < DIM)[None, :])


@triton.jit
def combine_kernel(
    partial: tl.tensor,
    weights: tl.tensor,
    out: tl.tensor,
    splits: tl.tensor,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_S: tl.constexpr,
) -> None:
    """Combine the soft-max of each split into the soft-max over all keys.

    partial: (splits, lines, DIM), weights: (splits, lines) float32, from `tree_attention_kernel`.
    out: (lines, DIM). BLOCK_S: at least `splits`. Grid: (lines,).
    """
    line, lines = tl.program_id(0), tl.num_programs(0)
    split = tl.arange(0, BLOCK_S)
    logs = tl.load(weights + split * lines + line, mask=split < splits, other=-float("inf"))
    top = tl.max(logs, 0)
    total = tl.sum(tl.exp2(logs - top), 0)
    dim = tl.arange(0, BLOCK_D)
    mixed = tl.zeros([BLOCK_D], tl.float32)
    for part in range(splits):
        at = (part * lines + line).to(tl.int64)
        weight = tl.exp2(tl.load(weights + at) - top)
        mixed += weight * tl.load(partial + at * DIM + dim, mask=dim < DIM, other=0.0)
    mixed = (mixed / total).to(out.dtype.element_ty)
    tl.store(out + line.to(tl.int64) * DIM + dim, mixed, mask=dim < DIM)


@triton.jit
def load_rows(
    base: tl.tensor,
    stride: tl.tensor,
    row: tl.tensor,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
) -> tl.tensor:
    """(rows, BLOCK_D) of rows `stride` apart; zeros behind their DIM channels."""
    dim = tl.arange(0, BLOCK_D)
    at = base + row[:, None] * stride + dim[None, :]
    if DIM == BLOCK_D:
        return tl.load(at)
    return tl.load(at, mask=(dim < DIM)[None, :], other=0.0)


@triton.jit
def scores(
    q: tl.tensor, k: tl.tensor, inner: tl.tensor, outer: tl.tensor, CAPPED: tl.constexpr
) -> tl.tensor:
    """(BLOCK_M, BLOCK_N) float32 scores to base 2: inner times the products or, if CAPPED,
    outer * tanh(x) with 2x = ln 2 * inner times the products. tanh x = 1 - 2 / (1 + exp 2x) is
    right where the exponential overflows."""
    score = tl.dot(q, tl.trans(k), input_precision="ieee") * inner
    if CAPPED:
        score = (1.0 - 2.0 / (1.0 + tl.exp2(score))) * outer
    return score


@triton.jit
def mix(
    top: tl.tensor,
    total: tl.tensor,
    mixed: tl.tensor,
    score: tl.tensor,
    v: tl.tensor,
    GAPS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Add a block to an online soft-max. GAPS: whether a row may have seen no key so far; its
    largest score is then -inf, and differences to it would be NaN."""
    new = tl.maximum(top, tl.max(score, 1))
    base = new
    if GAPS:
        base = tl.where(new == -float("inf"), 0.0, new)
    share = tl.exp2(score - base[:, None])
    rescale = tl.exp2(top - base)
    total = total * rescale + tl.sum(share, 1)
    mixed = tl.dot(share.to(v.dtype), v, mixed * rescale[:, None], input_precision="ieee")
    return new, total, mixed
