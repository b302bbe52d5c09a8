"""Ancestor bitmasks from parents, on the device."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftwood.core.kernels.launches import LAUNCHES
from draftwood.core.kernels.tree_mask import WORD

ROWS = 16
"""Nodes of a program, which follows their paths to the root in parallel."""


@triton.jit
def ancestors_kernel(
    parents: tl.tensor,
    ancestors: tl.tensor,
    nodes: tl.tensor,
    words: tl.tensor,
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
) -> None:
    """Set the bits of each node and of its ancestors.

    parents: (nodes,) integers, negative at a root. ancestors: (nodes, words) int32, as in
    `TreeMask`. WORDS: at least `words`. Grid: (ceil(nodes / ROWS),).
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    word = tl.arange(0, WORDS)
    inside = row < nodes
    node = tl.where(inside, row, -1)
    bits = tl.zeros([ROWS, WORDS], tl.int32)
    while tl.max(node, 0) >= 0:
        bit = tl.where(node >= 0, 1 << (node & 31), 0)
        bits |= tl.where(word[None, :] == (node >> 5)[:, None], bit[:, None], 0)
        node = tl.load(parents + node, mask=node >= 0, other=-1).to(tl.int32)
    tl.store(
        ancestors + row[:, None] * words + word[None, :],
        bits,
        mask=inside[:, None] & (word < words)[None, :],
    )


def ancestor_words(parents: Tensor) -> Tensor:
    """`Kernels.ancestors`."""
    (nodes,) = parents.shape
    words = -(-nodes // WORD)
    ancestors = torch.empty(nodes, words, dtype=torch.int32, device=parents.device)
    ancestors_kernel[(triton.cdiv(nodes, ROWS),)](
        parents,
        ancestors,
        nodes,
        words,
        ROWS=ROWS,
        WORDS=triton.next_power_of_2(words),
        num_warps=1,
        enable_fp_fusion=True,
    )
    LAUNCHES.add("ancestors")
    return ancestors
