"""Compiles kernels for GPUs that are not here, and reads what they would take there.

`compile_ahead` runs in a process of its own: where `TRITON_INTERPRET` is set, a kernel that was
imported is an interpreted one and cannot be compiled. `python -m` this module is that process:
JSON lines of jobs in, one line of figures for each out.
"""

import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import asdict, frozen

ALIGNED = 16  # what the JIT finds of pointers and most strides: tensors start on such a boundary


@frozen
class Chip:
    """A GPU to compile for. shared: most bytes of shared memory that one program may ask for."""

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
    """One kernel, specialised as a launch would.

    kernel: "package.module:function". chip: a key of CHIPS. signature: Triton's type of each
    argument that is no constexpr, "*fp16" or "i32". constants: the constexprs. aligned: arguments
    that are multiples of 16 (for pointers: their addresses), as the JIT would find them.
    options: num_warps, num_stages and the like; enable_fp_fusion must be among them, since
    whether a product is rounded before it is added is part of what a kernel computes.
    """

    kernel: str
    chip: str
    signature: Mapping[str, str]
    constants: Mapping[str, Any]
    options: Mapping[str, Any]
    aligned: Sequence[str] = ()

    def __attrs_post_init__(self) -> None:
        if self.chip not in CHIPS:
            raise ValueError(f"unknown chip {self.chip!r}; choices: {', '.join(CHIPS)}")
        if "enable_fp_fusion" not in self.options:
            raise ValueError(f"{self.kernel}: options must say enable_fp_fusion")


@frozen
class Built:
    """What a compiled kernel takes.

    shared: bytes of shared memory of a program. registers: of a thread. spills: what did not fit
    into them and went to memory, bytes a thread; 0 is the only good number.
    fp_fusion: what the compiler was told. seconds: compiling it took.
    """

    shared: int
    registers: int
    spills: int
    fp_fusion: bool
    seconds: float


def compile_ahead(jobs: Iterable[Job]) -> list[Built]:
    """Compile each job, without a device and without a cache, in one fresh process.

    Raises RuntimeError with the compiler's message if one does not compile.
    """
    lines = "".join(json.dumps(asdict(job)) + "\n" for job in jobs)
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "TRITON_CACHE_DIR": cache}
        environment.pop("TRITON_INTERPRET", None)
        done = subprocess.run(
            [sys.executable, "-m", __spec__.name],
            input=lines,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"ahead-of-time compilation failed:\n{done.stderr[-4000:]}")
    return [Built(**json.loads(line)) for line in done.stdout.splitlines()]


def compile_here(job: Job) -> Built:
    """Compile one job in this process, in which Triton must not be interpreting."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    module, _, name = job.kernel.partition(":")
    function = getattr(importlib.import_module(module), name)
    places = {argument: (place,) for place, argument in enumerate(function.arg_names)}
    types = {argument: job.signature.get(argument, "constexpr") for argument in places}
    attributes = {places[name]: [["tt.divisibility", ALIGNED]] for name in job.aligned}
    chip = CHIPS[job.chip]
    start = time.perf_counter()
    compiled = triton.compile(
        ASTSource(function, types, dict(job.constants), attributes),
        target=GPUTarget(chip.backend, chip.arch, chip.warp),
        options=dict(job.options),
    )
    seconds = time.perf_counter() - start
    read = _nvidia_usage if chip.backend == "cuda" else _amd_usage
    registers, spills = read(compiled.asm)
    metadata = compiled.metadata
    return Built(metadata.shared, registers, spills, bool(metadata.enable_fp_fusion), seconds)


def _nvidia_usage(asm: Mapping[str, Any]) -> tuple[int, int]:
    """Registers and spilled bytes of a thread, by the cuobjdump that Triton brings. Spills lie on
    the stack; our kernels put nothing else there."""
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
    """Vector registers of a thread, and what was spilled to memory, from the assembly. (Scalars
    that it counts as spilled and that need no memory are kept in lanes of a vector register.)"""
    text = asm["amdgcn"]
    spilled = _number(r"\.vgpr_spill_count:\s*(\d+)", text)
    scratch = _number(r"\.private_segment_fixed_size:\s*(\d+)", text)
    return _number(r"\.vgpr_count:\s*(\d+)", text), max(spilled, scratch)


def _number(pattern: str, text: str) -> int:
    """The one number that the pattern finds; silence would read as no spills."""
    found = re.search(pattern, text)
    if found is None:
        raise RuntimeError(f"the compiler's report has no {pattern!r}:\n{text[-2000:]}")
    return int(found.group(1))


def main() -> None:
    for line in sys.stdin:
        sys.stdout.write(json.dumps(asdict(compile_here(Job(**json.loads(line))))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
