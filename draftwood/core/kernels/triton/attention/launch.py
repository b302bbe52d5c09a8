"""Launches tree attention: chooses block sizes and the number of programs per context."""

from functools import cache

import torch
import triton
from torch import Tensor

from draftwood.core.errors import UnsupportedTarget
from draftwood.core.kernels.launches import LAUNCHES
from draftwood.core.kernels.tree_mask import TreeMask
from draftwood.core.kernels.triton.attention.kernel import (
    LOG2_E,
    combine_kernel,
    tree_attention_kernel,
)
from draftwood.core.kernels.triton.attention.tiles import Tile, block_dim, choose

MAX_DIM = 256
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
WARPS = 8
"""Warps per multiprocessor for which a context is split: each split costs reads and writes."""

MAX_SPLITS = 64
MIN_BLOCKS = 4
"""Fewest blocks of context per split."""


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: TreeMask,
    *,
    scaling: float,
    window: int | None = None,
    softcap: float | None = None,
    tile: Tile | None = None,
    splits: int | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """`Kernels.attend`, with three more arguments for tests and measurements.

    Args:
        tile: Block sizes; by default those of the lowest cost.
        splits: Programs per context; by default enough to fill the device.
        out: (n, heads, D), contiguous, to write to; allocated by default.

    Raises:
        UnsupportedTarget: There are no tiles for these heads, widths or dtypes.
    """
    heads, rows, dim = query.shape
    kv_heads = keys.shape[0]
    _refuse(query, keys, values)
    group = heads // kv_heads
    tile = tile or choose(_backend(), dim, query.element_size(), rows * group)
    blocks = triton.cdiv(rows * group, tile.rows)
    if splits is None:
        seen = mask.longest if window is None else min(mask.longest, window)
        room = _processors(query.device) * max(1, WARPS // tile.warps)
        most = min(seen // tile.keys // MIN_BLOCKS, MAX_SPLITS)
        splits = max(1, min(room // (blocks * kv_heads), most))
    out = query.new_empty(rows, heads, dim) if out is None else out
    partial, weights = out, out
    if splits > 1:
        partial = out.new_empty(splits, rows, heads, dim, dtype=torch.float32)
        weights = out.new_empty(splits, rows, heads, dtype=torch.float32)
    inner, outer = scaling * LOG2_E.value, 1.0
    if softcap is not None:
        inner, outer = 2 * LOG2_E.value * scaling / softcap, softcap * LOG2_E.value
    tree_attention_kernel[(blocks, kv_heads, splits)](
        query,
        keys,
        values,
        out,
        partial,
        weights,
        mask.context,
        mask.depths,
        mask.ancestors,
        query.stride(0),
        query.stride(1),
        keys.stride(0),
        keys.stride(1),
        values.stride(0),
        values.stride(1),
        rows,
        mask.first,
        1 if mask.ancestors is None else mask.ancestors.shape[1],
        window or 0,
        inner,
        outer,
        GROUP=group,
        DIM=dim,
        BLOCK_D=block_dim(dim),
        BLOCK_M=tile.rows,
        BLOCK_N=tile.keys,
        TREE=mask.ancestors is not None,
        CAUSAL=mask.causal,
        WINDOWED=window is not None,
        CAPPED=softcap is not None,
        SPLIT=splits > 1,
        **options(_backend(), tile),
    )
    LAUNCHES.add("tree_attention")
    if splits > 1:
        combine_kernel[(rows * heads,)](
            partial,
            weights,
            out,
            splits,
            DIM=dim,
            BLOCK_D=block_dim(dim),
            BLOCK_S=triton.next_power_of_2(splits),
            num_warps=1,
            enable_fp_fusion=True,
        )
        LAUNCHES.add("combine")
    return out


def options(backend: str, tile: Tile) -> dict[str, int | bool]:
    """Compile options: products may be fused with sums, and AMD's exponential may flush weights of
    the soft-max below 1e-38, which saves range checks."""
    chosen = {"num_warps": tile.warps, "num_stages": tile.stages, "enable_fp_fusion": True}
    if backend == "hip":
        chosen["allow_flush_denorm"] = True
    return chosen


def _refuse(query: Tensor, keys: Tensor, values: Tensor) -> None:
    heads, _, dim = query.shape
    if heads % keys.shape[0]:
        raise UnsupportedTarget(
            f"tree attention needs a multiple of {keys.shape[0]} query heads, one group for each "
            f"K/V head; the model has {heads}"
        )
    if keys.shape[-1] != dim or values.shape[-1] != dim or dim > MAX_DIM:
        raise UnsupportedTarget(
            f"tree attention has heads of one width up to {MAX_DIM}: queries have {dim}, keys "
            f"{keys.shape[-1]} and values {values.shape[-1]} channels"
        )
    if query.dtype not in DTYPES or keys.dtype != query.dtype or values.dtype != query.dtype:
        raise UnsupportedTarget(
            f"tree attention has no kernel for {query.dtype} queries, {keys.dtype} keys and "
            f"{values.dtype} values; one of float16, bfloat16, float32 for all (runtime.dtype)"
        )


@cache
def _backend() -> str:
    return "hip" if torch.version.hip else "cuda"


@cache
def _processors(device: torch.device) -> int:
    """Multiprocessors; 1 in the interpreter, which runs programs one after the other."""
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count
