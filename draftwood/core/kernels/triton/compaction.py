"""Commit: the accepted rows of every layer's keys and values move up, in one launch."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftwood.core.kernels.launches import LAUNCHES

ROWS = 16
"""Rows that one program has in hand at a time."""


@triton.jit
def compact_kernel(
    buffers: tl.tensor,
    path: tl.tensor,
    moved: tl.tensor,
    first: tl.tensor,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Row path[i] of a head's rows becomes row first + i, for i in order.

    buffers: (n,) int64, the address of row 0 of each head of each layer's keys and values, in
    rows of WIDTH 16-bit words. path: (moved,) int64, increasing, path[i] >= first + i. Grid: (n,).

    Within ROWS rows every read comes before any write. Those after them lie behind all that was
    written: path[i] > path[j] >= first + j for j < i, so no order of programs or threads matters.
    """
    rows = tl.load(buffers + tl.program_id(0)).to(tl.pointer_type(tl.int16))
    word = tl.arange(0, BLOCK)[None, :]
    for start in range(0, moved, ROWS):
        place = start + tl.arange(0, ROWS)
        source = tl.load(path + place, mask=place < moved, other=0)
        inside = (place < moved)[:, None] & (word < WIDTH)
        held = tl.load(rows + source[:, None] * WIDTH + word, mask=inside, other=0)
        tl.debug_barrier()
        target = (first + place).to(tl.int64)
        tl.store(rows + target[:, None] * WIDTH + word, held, mask=inside)
        tl.debug_barrier()


def compact(stacks: Sequence[Tensor], length: int, path: Sequence[int]) -> None:
    """`Kernels.compact`: rows length + path[i] of every stack become rows length + i.

    stacks: (layers, 1, heads, capacity, dim) contiguous each. One launch for all stacks whose rows
    are of one width: keys and values of every layer of most models. Waits for nothing.
    """
    start = next((i for i, row in enumerate(path) if row != i), len(path))
    moved = [length + row for row in path[start:]]
    if not moved:
        return
    for (width, device), members in _by_width(stacks).items():
        heads = [address for stack in members for address in _heads(stack)]
        sent = torch.tensor([*heads, *moved]).to(device, non_blocking=True)
        block = triton.next_power_of_2(width)
        compact_kernel[(len(heads),)](
            sent,
            sent[len(heads) :],
            len(moved),
            length + start,
            WIDTH=width,
            ROWS=ROWS,
            BLOCK=block,
            **options(block),
        )
        LAUNCHES.add("compact")


def options(block: int) -> dict[str, int | bool]:
    """Compile options for rows of up to `block` words: none spills, in Triton 3.7 and 3.9."""
    return {"num_warps": 8 if block <= 128 else 4, "enable_fp_fusion": False}


def _by_width(stacks: Sequence[Tensor]) -> dict[tuple[int, torch.device], list[Tensor]]:
    """Stacks by the 16-bit words of a row and where they are."""
    groups: dict[tuple[int, torch.device], list[Tensor]] = {}
    for stack in stacks:
        width = stack.shape[-1] * stack.element_size() // 2
        groups.setdefault((width, stack.device), []).append(stack)
    return groups


def _heads(stack: Tensor) -> range:
    """Addresses of each layer's each head's row 0."""
    layers, _, heads, capacity, dim = stack.shape
    step = capacity * dim * stack.element_size()
    return range(stack.data_ptr(), stack.data_ptr() + layers * heads * step, step)
