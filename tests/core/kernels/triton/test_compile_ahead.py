"""The kernels compile for GPUs that this machine does not have, without spills and within their
shared memory."""

import itertools
from typing import Any

import pytest
from compile_ahead import CHIPS, NIGHTLY, Job, assert_fits, compile_ahead

from draftwood.core.kernels.triton import compaction
from draftwood.core.kernels.triton.attention import launch
from draftwood.core.kernels.triton.attention.tiles import Tile, block_dim, tiles

# A kind of attention for each width that models have: the largest tile is the tightest.
KINDS = {
    64: {"causal": False},
    80: {"windowed": True},
    96: {"tree": False, "windowed": True, "split": False},
    128: {"windowed": True},
    256: {"windowed": True, "capped": True},
}
HALVES = ("fp16", "bf16")
SPILT_IN_FLOAT32 = 16
"""Bytes that a thread may spill in float32: Triton 3.7.1 spills so many on sm_90."""


_PACKAGE = "draftwood.core.kernels.triton."
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
    """`tree_attention_kernel` for heads of `dim` channels, `group` of them to a K/V head, in a
    dtype of Triton's."""
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
        _PACKAGE + "attention.kernel:tree_attention_kernel",
        chip,
        tensors | floats | strides | masks | scalars | {"inner": "fp32", "outer": "fp32"},
        constants,
        launch.options(CHIPS[chip].backend, tile),
        (*tensors, *floats, *strides),
    )


def combine_job(chip: str, dim: int, dtype: str) -> Job:
    """`combine_kernel` for up to 64 splits."""
    return Job(
        _PACKAGE + "attention.kernel:combine_kernel",
        chip,
        {"partial": "*fp32", "weights": "*fp32", "out": f"*{dtype}", "splits": "i32"},
        {"DIM": dim, "BLOCK_D": block_dim(dim), "BLOCK_S": 64},
        {"num_warps": 1, "enable_fp_fusion": True},
        ("partial", "weights", "out"),
    )


def ancestors_job(chip: str) -> Job:
    """`ancestors_kernel` for trees of up to 512 nodes."""
    return Job(
        _PACKAGE + "attention.ancestors:ancestors_kernel",
        chip,
        {"parents": "*i64", "ancestors": "*i32", "nodes": "i32", "words": "i32"},
        {"ROWS": 16, "WORDS": 16},
        {"num_warps": 1, "enable_fp_fusion": True},
        ("ancestors",),
    )


def compaction_job(chip: str, width: int = 128) -> Job:
    """`compact_kernel` for rows of `width` 16-bit words: 128 is a head of 128 half-precision
    channels."""
    constants = {"WIDTH": width, "ROWS": compaction.ROWS, "BLOCK": width}
    types = {"buffers": "*i64", "path": "*i64", "moved": "i32", "first": "i32"}
    kernel = _PACKAGE + "compaction:compact_kernel"
    return Job(kernel, chip, types, constants, compaction.options(width), ("buffers",))


def test_the_largest_tile_of_every_width_fits():
    """Dtypes alternate: they differ in one instruction."""
    jobs = []
    for turn, chip in enumerate(CHIPS):
        for place, (dim, kind) in enumerate(KINDS.items()):
            tile = max(tiles(CHIPS[chip].backend, dim, 2), key=lambda tile: tile.rows)
            jobs.append(attention_job(chip, dim, HALVES[(place + turn) % 2], tile, **kind))
        jobs += [combine_job(chip, 80, "bf16"), ancestors_job(chip), compaction_job(chip)]
    assert_fits(jobs)


@NIGHTLY
@pytest.mark.parametrize("chip", CHIPS)
def test_compaction_of_every_width_fits(chip):
    assert_fits([compaction_job(chip, width) for width in (64, 128, 256, 512)])


@NIGHTLY
@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("chip", CHIPS)
def test_every_tile_fits_with_all_features_and_with_none(chip, dtype):
    every, none = {"windowed": True, "capped": True}, {"tree": False, "split": False}
    size = 4 if dtype == "fp32" else 2
    jobs = [combine_job(chip, dim, dtype) for dim in KINDS]
    jobs += [
        attention_job(chip, dim, dtype, tile, **kind)
        for dim, kind in itertools.product(KINDS, (every, none))
        for tile in tiles(CHIPS[chip].backend, dim, size)
    ]
    assert_fits(jobs, SPILT_IN_FLOAT32 if dtype == "fp32" else 0)


def test_spills_and_too_much_shared_memory_are_found():
    deep, narrow = Tile(16, 128, 4, 5), Tile(64, 32, 1, 2)
    jobs = [attention_job("sm_80", 128, "fp16", tile) for tile in (deep, narrow)]
    hungry, spilt = compile_ahead(jobs)
    assert hungry.shared > CHIPS["sm_80"].shared
    assert spilt.spills > 0


def test_a_job_without_fp_fusion_or_with_an_unknown_chip_is_refused():
    with pytest.raises(ValueError, match="enable_fp_fusion"):
        Job("some:kernel", "sm_90", {}, {}, {"num_warps": 4})
    with pytest.raises(ValueError, match="choices: sm_80"):
        Job("some:kernel", "sm_75", {}, {}, {"enable_fp_fusion": True})


def test_a_kernel_that_does_not_compile_raises_the_compilers_message():
    job = attention_job("sm_90", 128, "bf16", Tile(48, 64, 4, 2))
    with pytest.raises(RuntimeError, match="power of 2"):
        compile_ahead([job])
