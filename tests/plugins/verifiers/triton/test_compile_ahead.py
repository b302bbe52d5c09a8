"""Attention compiles for GPUs that are not here, without spills and within their shared memory."""

import itertools
import os

import pytest

from draftwood.core.kernels.triton.attention.tiles import Tile, tiles
from draftwood.plugins.verifiers.triton.ahead import CHIPS, Job, compile_ahead
from draftwood.plugins.verifiers.triton.attention.jobs import (
    ancestors_job,
    attention_job,
    combine_job,
)

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
"""Bytes a thread that may go to memory in float32: Triton 3.7.1 spills so many on sm_90."""


def check(jobs, spills=0):
    for job, built in zip(jobs, compile_ahead(jobs), strict=True):
        what = f"{job.kernel} on {job.chip} with {dict(job.constants)}: {built}"
        assert built.spills <= spills, what
        assert built.shared <= CHIPS[job.chip].shared, what
        assert built.registers > 0, what
        assert built.fp_fusion == job.options["enable_fp_fusion"], what


NIGHTLY = pytest.mark.skipif(
    os.environ.get("HYPOTHESIS_PROFILE") != "nightly", reason="minutes of compiling: nightly only"
)


def test_the_largest_tile_of_every_width():
    """Both dtypes on each chip, by turns; they differ in one instruction."""
    jobs = []
    for turn, chip in enumerate(CHIPS):
        for place, (dim, kind) in enumerate(KINDS.items()):
            tile = max(tiles(CHIPS[chip].backend, dim, 2), key=lambda tile: tile.rows)
            jobs.append(attention_job(chip, dim, HALVES[(place + turn) % 2], tile, **kind))
        jobs += [combine_job(chip, 80, "bf16"), ancestors_job(chip)]
    check(jobs)


@NIGHTLY
@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("chip", CHIPS)
def test_every_tile_with_everything_on_and_everything_off(chip, dtype):
    every, none = {"windowed": True, "capped": True}, {"tree": False, "split": False}
    size = 4 if dtype == "fp32" else 2
    jobs = [combine_job(chip, dim, dtype) for dim in KINDS]
    jobs += [
        attention_job(chip, dim, dtype, tile, **kind)
        for dim, kind in itertools.product(KINDS, (every, none))
        for tile in tiles(CHIPS[chip].backend, dim, size)
    ]
    check(jobs, SPILT_IN_FLOAT32 if dtype == "fp32" else 0)


def test_the_check_sees_spills_and_too_much_shared_memory():
    deep, narrow = Tile(16, 128, 4, 5), Tile(64, 32, 1, 2)
    jobs = [attention_job("sm_80", 128, "fp16", tile) for tile in (deep, narrow)]
    hungry, spilt = compile_ahead(jobs)
    assert hungry.shared > CHIPS["sm_80"].shared
    assert spilt.spills > 0


def test_what_contraction_does_must_be_said():
    with pytest.raises(ValueError, match="enable_fp_fusion"):
        Job("some:kernel", "sm_90", {}, {}, {"num_warps": 4})
    with pytest.raises(ValueError, match="choices: sm_80"):
        Job("some:kernel", "sm_75", {}, {}, {"enable_fp_fusion": True})


def test_a_kernel_that_does_not_compile_is_an_error_with_its_message():
    job = attention_job("sm_90", 128, "bf16", Tile(48, 64, 4, 2))
    with pytest.raises(RuntimeError, match="power of 2"):
        compile_ahead([job])
