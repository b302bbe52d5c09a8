"""Compaction: copies the accepted rows of all layers' keys and values in one launch."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftwood.core.kernels.launches import LAUNCHES

ROWS = 16
"""Rows that a program copies at a time."""


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
    """Copy row path[i] of each head to row first + i, for i in order.

    buffers: (n,) int64, the address of row 0 of each head of each layer's keys and values, in
    rows of WIDTH 16-bit words. path: (moved,) int64, increasing, path[i] >= first + i. Grid: (n,).

    Of ROWS rows, all are read before one is written. Later rows lie behind everything written:
    path[i] > path[j] >= first + j for j < i. So the order of programs and threads does not matter.
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
    """`Kernels.compact`, in one launch for all stacks with rows of one width."""
    start = next((i for i, row in enumerate(path) if row != i), len(path))
    moved = [length + row for row in path[start:]]
    if not moved:
        return
    for (width, device), members in _by_width(stacks).items():
        heads = [address for stack in members for address in _head_addresses(stack)]
        inputs = torch.tensor([*heads, *moved]).to(device, non_blocking=True)
        block = triton.next_power_of_2(width)
        compact_kernel[(len(heads),)](
            inputs,
            inputs[len(heads) :],
            len(moved),
            length + start,
            WIDTH=width,
            ROWS=ROWS,
            BLOCK=block,
            **options(block),
        )
        LAUNCHES.add("compact")


def options(block: int) -> dict[str, int | bool]:
    """Compile options for rows of up to `block` words, without spills in Triton 3.7 and 3.9."""
    return {"num_warps": 8 if block <= 128 else 4, "enable_fp_fusion": False}


def _by_width(stacks: Sequence[Tensor]) -> dict[tuple[int, torch.device], list[Tensor]]:
    """Stacks by the 16-bit words of a row and their device."""
    groups: dict[tuple[int, torch.device], list[Tensor]] = {}
    for stack in stacks:
        width = stack.shape[-1] * stack.element_size() // 2
        groups.setdefault((width, stack.device), []).append(stack)
    return groups


def _head_addresses(stack: Tensor) -> range:
    """Address of row 0 of each head of each layer."""
    layers, _, heads, capacity, dim = stack.shape
    step = capacity * dim * stack.element_size()
    return range(stack.data_ptr(), stack.data_ptr() + layers * heads * step, step)
