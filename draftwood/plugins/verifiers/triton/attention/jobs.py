"""Tree attention as ahead-of-time jobs: what a launch would compile, for chips not here."""

from typing import Any

from draftwood.core.kernels.triton.attention.launch import options
from draftwood.core.kernels.triton.attention.tiles import Tile, block_dim
from draftwood.plugins.verifiers.triton.ahead import CHIPS, Job

_PACKAGE = "draftwood.core.kernels.triton.attention."
_STRIDES = ("query", "key", "value")


def attention_job(
    chip: str,
    dim: int,
    dtype: str,
    tile: Tile,
    *,
    tree: bool = True,
    causal: bool = True,
    windowed: bool = False,
    capped: bool = False,
    split: bool = True,
    group: int = 4,
) -> Job:
    """`tree_attention_kernel` for heads of `dim` channels, `group` of them to a K/V head. dtype: as
    Triton spells it."""
    tensors = dict.fromkeys(("query", "keys", "values", "out"), f"*{dtype}")
    floats = dict.fromkeys(("partial", "weights"), "*fp32")
    if not split:
        floats = dict.fromkeys(floats, f"*{dtype}")
    strides = {f"{name}_{step}_stride": "i32" for name in _STRIDES for step in ("head", "row")}
    masks = {"context": "*i32"}
    constants: dict[str, Any] = {
        "GROUP": group,
        "DIM": dim,
        "BLOCK_D": block_dim(dim),
        "BLOCK_M": tile.rows,
        "BLOCK_N": tile.keys,
        "TREE": tree,
        "CAUSAL": causal,
        "WINDOWED": windowed,
        "CAPPED": capped,
        "SPLIT": split,
    }
    if tree:
        masks |= {"depths": "*i64", "ancestors": "*i32"}
    else:
        constants |= {"depths": None, "ancestors": None}
    scalars = dict.fromkeys(("rows", "first", "words", "window"), "i32")
    return Job(
        _PACKAGE + "kernel:tree_attention_kernel",
        chip,
        tensors | floats | strides | masks | scalars | {"inner": "fp32", "outer": "fp32"},
        constants,
        options(CHIPS[chip].backend, tile),
        (*tensors, *floats, *strides),
    )


def combine_job(chip: str, dim: int, dtype: str) -> Job:
    """`combine_kernel` for as many splits as there may be."""
    return Job(
        _PACKAGE + "kernel:combine_kernel",
        chip,
        {"partial": "*fp32", "weights": "*fp32", "out": f"*{dtype}", "splits": "i32"},
        {"DIM": dim, "BLOCK_D": block_dim(dim), "BLOCK_S": 64},
        {"num_warps": 1, "enable_fp_fusion": True},
        ("partial", "weights", "out"),
    )


def ancestors_job(chip: str) -> Job:
    """`ancestors_kernel` for trees of up to 512 nodes."""
    return Job(
        _PACKAGE + "ancestors:ancestors_kernel",
        chip,
        {"parents": "*i64", "ancestors": "*i32", "nodes": "i32", "words": "i32"},
        {"ROWS": 16, "WORDS": 16},
        {"num_warps": 1, "enable_fp_fusion": True},
        ("ancestors",),
    )
