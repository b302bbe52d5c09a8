"""Compiles kernels for GPUs that this machine does not have, and reads what they take there.

`compile_ahead` uses a process of its own: with `TRITON_INTERPRET` set, imported kernels are
interpreted and cannot be compiled. This file is the program of that process: it reads pickled jobs
and prints one JSON line of resources for each.
"""

import importlib
import json
import os
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import asdict, frozen

NIGHTLY = pytest.mark.skipif(
    os.environ.get("HYPOTHESIS_PROFILE") != "nightly", reason="minutes of compiling: nightly only"
)
DIVISOR = 16
"""Of the pointers and of most strides, as the JIT finds."""


@frozen
class Chip:
    """A GPU to compile for.

    Attributes:
        backend: cuda or hip.
        arch: Triton's name of the architecture.
        warp: Threads of a warp.
        shared: Most bytes of shared memory of one program.
    """

    backend: str
    arch: int | str
    warp: int
    shared: int


CHIPS: Mapping[str, Chip] = {
    "sm_80": Chip("cuda", 80, 32, 163 * 1024),
    "sm_90": Chip("cuda", 90, 32, 227 * 1024),
    "sm_100": Chip("cuda", 100, 32, 227 * 1024),
    "gfx942": Chip("hip", "gfx942", 64, 64 * 1024),
}


@frozen
class Job:
    """One kernel, specialised as a launch specialises it.

    Attributes:
        kernel: "package.module:function".
        chip: A key of CHIPS.
        signature: Triton's type of each argument that is no constexpr, such as "*fp16" or "i32";
            a named tuple of types for a group.
        constants: The constexprs.
        options: num_warps, num_stages and the like. enable_fp_fusion is required: whether a product
            is rounded before it is added is part of what a kernel computes.
        aligned: Arguments that are multiples of 16 (of pointers, their addresses; of groups, the
            addresses of all their pointers).
    """

    kernel: str
    chip: str
    signature: Mapping[str, Any]
    constants: Mapping[str, Any]
    options: Mapping[str, Any]
    aligned: Sequence[str] = ()

    def __attrs_post_init__(self) -> None:
        if self.chip not in CHIPS:
            raise ValueError(f"unknown chip {self.chip!r}; choices: {', '.join(CHIPS)}")
        if "enable_fp_fusion" not in self.options:
            raise ValueError(f"{self.kernel}: options need enable_fp_fusion")


@frozen
class Built:
    """The resources of a compiled kernel.

    Attributes:
        shared: Bytes of shared memory of a program.
        registers: Registers of a thread.
        spills: Bytes of a thread that did not fit into registers and lie in memory.
        fp_fusion: The compiler's enable_fp_fusion.
    """

    shared: int
    registers: int
    spills: int
    fp_fusion: bool


def compile_ahead(jobs: Iterable[Job]) -> list[Built]:
    """Compile each job, without a device and without a cache, in one new process.

    Raises:
        RuntimeError: One does not compile; with the compiler's message.
    """
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "TRITON_CACHE_DIR": cache}
        environment.pop("TRITON_INTERPRET", None)
        done = subprocess.run(
            [sys.executable, __file__],
            input=pickle.dumps(list(jobs)),
            env=environment,
            capture_output=True,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"ahead-of-time compilation failed:\n{done.stderr.decode()[-4000:]}")
    return [Built(**json.loads(line)) for line in done.stdout.splitlines()]


def assert_fits(jobs: Sequence[Job], max_spills: int = 0) -> None:
    """Each job compiles, spills at most `max_spills` bytes and fits into its GPU."""
    for job, built in zip(jobs, compile_ahead(jobs), strict=True):
        what = f"{job.kernel} on {job.chip} with {dict(job.constants)}: {built}"
        assert built.spills <= max_spills, what
        assert built.shared <= CHIPS[job.chip].shared, what
        assert built.registers > 0, what
        assert built.fp_fusion == job.options["enable_fp_fusion"], what


def _compile(job: Job) -> Built:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    module, _, name = job.kernel.partition(":")
    function = getattr(importlib.import_module(module), name)
    places = {argument: (place,) for place, argument in enumerate(function.arg_names)}
    types = {argument: job.signature.get(argument, "constexpr") for argument in places}
    aligned = [path for name in job.aligned for path in _paths(places[name], types[name])]
    attributes = {path: [["tt.divisibility", DIVISOR]] for path in aligned}
    chip = CHIPS[job.chip]
    compiled = triton.compile(
        ASTSource(function, types, dict(job.constants), attributes),
        target=GPUTarget(chip.backend, chip.arch, chip.warp),
        options=dict(job.options),
    )
    read = _nvidia_usage if chip.backend == "cuda" else _amd_usage
    registers, spills = read(compiled.asm)
    metadata = compiled.metadata
    return Built(metadata.shared, registers, spills, bool(metadata.enable_fp_fusion))


def _paths(place: tuple[int, ...], types: Any) -> list[tuple[int, ...]]:
    """An argument's own path, or those of a group's pointers."""
    if not isinstance(types, tuple):
        return [place]
    return [(*place, i) for i, kind in enumerate(types) if kind.startswith("*")]


def _nvidia_usage(asm: Mapping[str, Any]) -> tuple[int, int]:
    """Registers and spilled bytes of a thread. Only spills lie on the stacks of our kernels."""
    from triton import knobs

    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder) / "kernel.cubin"
        binary.write_bytes(asm["cubin"])
        shown = subprocess.run(
            [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(binary)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    return _number(r"REG:(\d+)", shown), _number(r"STACK:(\d+)", shown) + _number(
        r"LOCAL:(\d+)", shown
    )


def _amd_usage(asm: Mapping[str, Any]) -> tuple[int, int]:
    """Vector registers and spilled bytes of a thread; spilled scalars lie in vector registers."""
    text = asm["amdgcn"]
    spilled = _number(r"\.vgpr_spill_count:\s*(\d+)", text)
    scratch = _number(r"\.private_segment_fixed_size:\s*(\d+)", text)
    return _number(r"\.vgpr_count:\s*(\d+)", text), max(spilled, scratch)


def _number(pattern: str, text: str) -> int:
    """The number that the pattern finds: a missing one must not be read as 0 spills."""
    found = re.search(pattern, text)
    if found is None:
        raise RuntimeError(f"the compiler's report has no {pattern!r}:\n{text[-2000:]}")
    return int(found.group(1))


if __name__ == "__main__":
    for each in pickle.load(sys.stdin.buffer):
        sys.stdout.write(json.dumps(asdict(_compile(each))) + "\n")
