"""The judge's kernels compile for GPUs that this machine does not have, and spill nothing there."""

from importlib import import_module
from typing import Any

import pytest
from attrs import evolve
from compile_ahead import CHIPS, NIGHTLY, Job, assert_fits, compile_ahead

from draftwood.plugins.verifiers.triton.judge import launch

_PACKAGE = "draftwood.plugins.verifiers.triton.judge."
_REAL = {"peaks", "bests", "seconds", "masses", "left", "q"}
_SCALARS = {"stride", "vocab", "splits", "size", "q_stride"}
_BLOCKS = launch.Blocks()
_CHUNKS = {"CHUNK": _BLOCKS.chunk, "TILE": _BLOCKS.tile, "SPAN": 32}
_WHOLE = {"TILE": _BLOCKS.wide, "SPAN": 32}
_SAMPLED = {"TEMPERED": True, "GREEDY": False}

KERNELS: dict[str, dict[str, Any]] = {
    "rows:peaks_kernel": {"CHUNK": _BLOCKS.chunk, "TILE": _BLOCKS.tile},
    "filters:filters_kernel": {
        "TEMPERED": True, "BY_COUNT": True, "BY_MASS": True, "BY_FLOOR": True,
        "TILE": _BLOCKS.sifted, "SPAN": 32,
    },
    "race:race_kernel": {"TEMPERED": True, "FILTERED": True, **_CHUNKS},
    "walk:walk_kernel": {"GREEDY": False, "FILTERED": True, "NODES": 512},
    "residual:residual_kernel": {**_SAMPLED, **_WHOLE},
    "residual:accepted_walk_kernel": {"NODES": 512},
    "residual:bonus_race_kernel": {**_SAMPLED, **_CHUNKS},
    "residual:bonus_kernel": {"GREEDY": False, "SPAN": 32},
}  # fmt: skip
"""The judge's kernels with their constants for up to 262k tokens (32 chunks) and trees of up to
511 nodes, every filter on."""


def judge_job(chip: str, kernel: str, dtype: str = "bf16") -> Job:
    """One of KERNELS over logits of a dtype of Triton's."""
    module, _, name = kernel.partition(":")
    place = _PACKAGE + module
    arguments = getattr(import_module(place), name).arg_names
    constants = dict(KERNELS[kernel])
    if "DOUBLE" in arguments:
        constants["DOUBLE"] = dtype == "fp64"
    types = {each: _type(each, name, dtype) for each in arguments if each not in constants}
    pointers = tuple(each for each, kind in types.items() if kind.startswith("*"))
    return Job(f"{place}:{name}", chip, types, constants, launch.options(name), pointers)


def _type(argument: str, kernel: str, dtype: str) -> str:
    if argument in _SCALARS:
        return "i32"
    if argument == "logits":
        return f"*{dtype}"
    if argument == "shares":
        return "*fp64"
    if argument in _REAL or (argument == "values" and kernel.startswith("bonus")):
        return "*fp64" if dtype == "fp64" else "*fp32"
    return "*i64"


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
        constants={**fits.constants, "TILE": 4096, "CHUNK": 4096},
        options={**fits.options, "num_warps": 1},
    )
    (built,) = compile_ahead([wide])
    assert built.spills > 0
