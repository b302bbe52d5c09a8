"""Every judge and commit kernel compiles for GPUs that are not here, and spills nothing there."""

from typing import Any

import pytest

from draftwood.plugins.verifiers.triton import compaction
from draftwood.plugins.verifiers.triton.ahead import CHIPS, Built, Job, compile_ahead
from draftwood.plugins.verifiers.triton.judge import launch

REAL = {"peaks", "bests", "seconds", "masses", "left"}  # as wide as the arithmetic
DOUBLES = {"shares"}
SCALARS = {"stride", "vocab", "splits", "size", "q_stride", "moved", "first"}
BLOCKS = launch.Blocks()

CONSTANTS: dict[str, dict[str, Any]] = {
    "rows:peaks_kernel": {"CHUNK": BLOCKS.chunk, "TILE": BLOCKS.tile},
    "filters:filters_kernel": {
        "TEMPERED": True, "BY_COUNT": True, "BY_MASS": True, "BY_FLOOR": True,
        "TILE": BLOCKS.wide, "SPAN": 32,
    },
    "race:race_kernel": {
        "TEMPERED": True, "FILTERED": True,
        "CHUNK": BLOCKS.chunk, "TILE": BLOCKS.tile, "SPAN": 32,
    },
    "walk:walk_kernel": {"GREEDY": False, "FILTERED": True, "NODES": 512},
    "residual:residual_kernel": {
        "TEMPERED": True, "GREEDY": False, "TILE": BLOCKS.wide, "SPAN": 32,
    },
    "residual:accepted_walk_kernel": {"NODES": 512},
    "residual:bonus_race_kernel": {
        "TEMPERED": True, "GREEDY": False,
        "CHUNK": BLOCKS.chunk, "TILE": BLOCKS.tile, "SPAN": 32,
    },
    "residual:bonus_kernel": {"GREEDY": False, "SPAN": 32},
}  # fmt: skip
"""By kernel: a vocabulary of 152k (19 chunks), trees of up to 511 nodes, every filter on."""


def job(place: str, chip: str, dtype: str = "bf16") -> Job:
    """A kernel as a launch over logits of `dtype` would be compiled."""
    module, name = place.split(":")
    package = "draftwood.plugins.verifiers.triton.judge."
    constants = dict(CONSTANTS[place])
    arguments = _arguments(package + module, name)
    if "DOUBLE" in arguments:
        constants["DOUBLE"] = dtype == "fp64"
    signature = {
        argument: _type(argument, name, dtype)
        for argument in arguments
        if argument not in constants
    }
    aligned = tuple(a for a, kind in signature.items() if kind.startswith("*"))
    return Job(
        f"{package}{module}:{name}", chip, signature, constants, launch.options(name), aligned
    )


def commit_job(chip: str, width: int = 128) -> Job:
    """Rows of `width` 16-bit words: one head of 128 in half precision."""
    constants = {"WIDTH": width, "ROWS": compaction.ROWS, "BLOCK": width}
    signature = {"buffers": "*i64", "path": "*i64", "moved": "i32", "first": "i32"}
    kernel = "draftwood.plugins.verifiers.triton.compaction:compact_kernel"
    return Job(kernel, chip, signature, constants, compaction.options(width), ("buffers",))


def _arguments(module: str, name: str) -> list[str]:
    from importlib import import_module

    return list(getattr(import_module(module), name).arg_names)


def _type(argument: str, kernel: str, dtype: str) -> str:
    real = "fp64" if dtype == "fp64" else "fp32"
    if argument in SCALARS:
        return "i32"
    if argument == "logits":
        return f"*{dtype}"
    if argument == "q" or argument in REAL or (argument == "values" and "bonus" in kernel):
        return f"*{real}"
    return "*fp64" if argument in DOUBLES else "*i64"


def check(built: Built, wanted: Job) -> None:
    assert built.spills == 0, f"{wanted.kernel} on {wanted.chip} spills {built.spills}"
    assert built.shared <= CHIPS[wanted.chip].shared
    assert built.fp_fusion is False


@pytest.mark.parametrize("chip", CHIPS)
def test_nothing_spills_at_the_sizes_of_a_real_vocabulary(chip: str) -> None:
    jobs = [*(job(place, chip) for place in CONSTANTS), commit_job(chip)]
    for built, wanted in zip(compile_ahead(jobs), jobs, strict=True):
        check(built, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
@pytest.mark.parametrize("chip", CHIPS)
def test_nor_for_other_dtypes_and_wider_rows(chip: str, dtype: str) -> None:
    jobs = [job(place, chip, dtype) for place in CONSTANTS]
    jobs += [commit_job(chip, width) for width in (64, 256, 512)]
    for built, wanted in zip(compile_ahead(jobs), jobs, strict=True):
        check(built, wanted)


def test_a_kernel_that_needs_too_many_registers_is_seen_to_spill() -> None:
    """The check can fail: one warp cannot hold a whole tile of this kernel's blocks."""
    cramped = job("residual:bonus_race_kernel", "sm_90")
    constants = {**cramped.constants, "TILE": 8192, "CHUNK": 8192}
    options = {**cramped.options, "num_warps": 1}
    wanted = Job(cramped.kernel, "sm_90", cramped.signature, constants, options, cramped.aligned)
    (built,) = compile_ahead([wanted])
    assert built.spills > 0
