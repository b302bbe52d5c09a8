"""The judge's and the commit's kernels as ahead-of-time jobs: what a launch would compile, for
chips not here."""

from importlib import import_module
from typing import Any

from draftwood.core.kernels.triton import compaction
from draftwood.plugins.verifiers.triton.ahead import Job
from draftwood.plugins.verifiers.triton.judge import launch

_PACKAGE = "draftwood.plugins.verifiers.triton."
_REAL = {"peaks", "bests", "seconds", "masses", "left", "q"}  # as wide as the arithmetic
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
"""The judge's kernels with what they would be compiled with for up to 262k tokens (32 chunks) and
trees of up to 511 nodes, every filter on."""


def judge_job(chip: str, kernel: str, dtype: str = "bf16") -> Job:
    """One of KERNELS over logits of `dtype`, as Triton spells it."""
    module, _, name = kernel.partition(":")
    place = f"{_PACKAGE}judge.{module}"
    arguments = getattr(import_module(place), name).arg_names
    constants = dict(KERNELS[kernel])
    if "DOUBLE" in arguments:
        constants["DOUBLE"] = dtype == "fp64"
    types = {each: _type(each, name, dtype) for each in arguments if each not in constants}
    pointers = tuple(each for each, kind in types.items() if kind.startswith("*"))
    return Job(f"{place}:{name}", chip, types, constants, launch.options(name), pointers)


def commit_job(chip: str, width: int = 128) -> Job:
    """Rows of `width` 16-bit words: 128 is a head of 128 channels in half precision."""
    constants = {"WIDTH": width, "ROWS": compaction.ROWS, "BLOCK": width}
    types = {"buffers": "*i64", "path": "*i64", "moved": "i32", "first": "i32"}
    kernel = f"{_PACKAGE}compaction:compact_kernel"
    return Job(kernel, chip, types, constants, compaction.options(width), ("buffers",))


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
