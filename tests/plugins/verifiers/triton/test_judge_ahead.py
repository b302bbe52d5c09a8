"""The judge's kernels compile for GPUs that this machine does not have, and spill nothing there."""

from importlib import import_module
from typing import Any

import pytest
from attrs import evolve
from compile_ahead import CHIPS, NIGHTLY, Job, assert_fits, compile_ahead

from draftwood.plugins.verifiers.triton.judge import buffers, launch

_PACKAGE = "draftwood.plugins.verifiers.triton.judge."
_BLOCKS = launch.Blocks()
_MODE = buffers.Mode(
    chunk=_BLOCKS.chunk, tile=_BLOCKS.tile, span=32, double=False, tempered=True, greedy=False,
    top_k=True, top_p=True, min_p=True,
)  # fmt: skip

KERNELS: dict[str, dict[str, Any]] = {
    "rows:row_max_kernel": {"MODE": _MODE},
    "filters:filters_kernel": {"MODE": evolve(_MODE, tile=_BLOCKS.filter_tile)},
    "race:race_kernel": {"MODE": _MODE},
    "walk:match_walk_kernel": {"MODE": _MODE, "NODES": 512},
    "residual:residual_kernel": {"MODE": evolve(_MODE, tile=_BLOCKS.wide)},
    "walk:residual_walk_kernel": {"MODE": _MODE, "NODES": 512},
    "residual:bonus_race_kernel": {"MODE": _MODE},
    "residual:bonus_kernel": {"MODE": _MODE},
}
"""The judge's kernels with their constants for up to 262k tokens (32 chunks) and trees of up to
511 nodes, every filter on."""


def judge_job(chip: str, kernel: str, dtype: str = "bf16") -> Job:
    """One of KERNELS over logits of a dtype of Triton's."""
    module, _, name = kernel.partition(":")
    path = _PACKAGE + module
    constants = dict(KERNELS[kernel])
    constants["MODE"] = evolve(constants["MODE"], double=dtype == "fp64")
    real = "*fp64" if dtype == "fp64" else "*fp32"
    groups = {
        "logits": buffers.Matrix(f"*{dtype}", "i32"),
        "q": buffers.Matrix(real, "i32"),
        "shape": buffers.Shape("i32", "i32", "i32"),
        "tree": buffers.TreeColumns("*i64", "*i64", "*i64"),
        "row_max": buffers.RowMax(real, "*i64"),
        "max_values": real,
        "filters": buffers.FilterBounds("*i64", real),
        "race": buffers.Race(real, real, "*i64"),
        "residuals": buffers.Residuals(real, "*fp64", "*i64"),
        "bonus_race": buffers.BonusRace(real, "*i64"),
    }
    arguments = getattr(import_module(path), name).arg_names
    types = {each: groups.get(each, "*i64") for each in arguments if each not in constants}
    aligned = tuple(each for each in types if each != "shape")
    return Job(f"{path}:{name}", chip, types, constants, launch.options(name), aligned)


@pytest.mark.slow
@pytest.mark.parametrize("chip", CHIPS)
def test_bfloat16_kernels_fit_for_a_vocabulary_of_262k(chip: str) -> None:
    assert_fits([judge_job(chip, kernel) for kernel in KERNELS])


@NIGHTLY
@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
@pytest.mark.parametrize("chip", CHIPS)
def test_kernels_of_other_dtypes_fit(chip: str, dtype: str) -> None:
    assert_fits([judge_job(chip, kernel, dtype) for kernel in KERNELS])


def test_a_tile_too_wide_for_one_warp_spills() -> None:
    fits = judge_job("sm_90", "residual:bonus_race_kernel")
    wide = evolve(
        fits,
        constants={"MODE": evolve(fits.constants["MODE"], tile=4096, chunk=4096)},
        options={**fits.options, "num_warps": 1},
    )
    (built,) = compile_ahead([wide])
    assert built.spills > 0
