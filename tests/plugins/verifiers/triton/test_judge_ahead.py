"""Every judge and commit kernel compiles for GPUs that are not here, and spills nothing there."""

import os

import pytest
from attrs import evolve

from draftwood.plugins.verifiers.triton.ahead import CHIPS, Job, compile_ahead
from draftwood.plugins.verifiers.triton.judge.jobs import KERNELS, commit_job, judge_job

NIGHTLY = pytest.mark.skipif(
    os.environ.get("HYPOTHESIS_PROFILE") != "nightly", reason="minutes of compiling: nightly only"
)


def check(jobs: list[Job]) -> None:
    for built, wanted in zip(compile_ahead(jobs), jobs, strict=True):
        assert built.spills == 0, f"{wanted.kernel} on {wanted.chip}: {built}"
        assert built.shared <= CHIPS[wanted.chip].shared
        assert built.fp_fusion is False


@pytest.mark.slow
@pytest.mark.parametrize("chip", CHIPS)
def test_nothing_spills_at_the_sizes_of_a_real_vocabulary(chip: str) -> None:
    check([*(judge_job(chip, kernel) for kernel in KERNELS), commit_job(chip)])


@NIGHTLY
@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
@pytest.mark.parametrize("chip", CHIPS)
def test_nor_for_other_dtypes_and_widths(chip: str, dtype: str) -> None:
    jobs = [judge_job(chip, kernel, dtype) for kernel in KERNELS]
    check(jobs + [commit_job(chip, width) for width in (64, 256, 512)])


def test_a_kernel_that_needs_too_many_registers_is_seen_to_spill() -> None:
    """The check can fail: one warp cannot hold so wide a tile."""
    fits = judge_job("sm_90", "residual:bonus_race_kernel")
    wide = evolve(
        fits,
        constants={**fits.constants, "TILE": 4096, "CHUNK": 4096},
        options={**fits.options, "num_warps": 1},
    )
    (built,) = compile_ahead([wide])
    assert built.spills > 0
