"""Measures the kernels on a GPU, in under ten minutes: `python benchmarks/gpu/run.py`.

Four parts, each in a process of its own with its own share of the time, so that one that fails,
hangs or breaks the device's context takes nothing else with it:

    kernels    the kernels' tests, on the device
    attention  tree attention against SDPA with a dense mask, flex-attention and the device's limits
    judge      judge and commit against the same decisions in torch, at a vocabulary of 151,936
    rounds     whole rounds of random models of real sizes, stage by stage, and T_v(N) with its fit

Everything that was measured goes to a JSON file as it comes; one table is printed last. The first
three parts need torch, triton, attrs and numpy (the tests pytest and hypothesis too); the last one
needs what draftwood needs. Nothing is downloaded.

--dry-run does the same at tiny sizes on the CPU, in Triton's interpreter: its times mean nothing,
but what it runs is what a GPU will run.
"""

import argparse
import importlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MODULES = {
    "kernels": "testing",
    "attention": "attending",
    "judge": "judging",
    "rounds": "rounds",
}
SHARES = {"kernels": 0.2, "attention": 0.25, "judge": 0.15, "rounds": 0.4}
OWN_LIMIT = 0.85  # of its share a part plans to use; at the end of the share it is stopped


def main() -> int:
    arguments = _arguments()
    if arguments.dry_run:
        os.environ["TRITON_INTERPRET"] = "1"
    sys.path[:0] = [str(HERE), str(ROOT)]
    if arguments.part:
        return run_part(arguments.part, arguments.seconds, arguments.dry_run, arguments.result)
    parts = arguments.only or list(MODULES)
    out: Path = arguments.out
    report: dict[str, Any] = {"dry_run": arguments.dry_run, "parts": {}}
    end = time.monotonic() + 60 * arguments.minutes
    for place, part in enumerate(parts):
        share = SHARES[part] / sum(SHARES[other] for other in parts[place:])
        seconds = max(1.0, (end - time.monotonic()) * share)
        print(f"{part}: at most {seconds:.0f} s", flush=True)  # noqa: T201
        report["parts"][part] = supervised(part, seconds, arguments.dry_run)
        write(out, report)
    from tables import table

    print(table(report))  # noqa: T201
    failed = [part for part, result in report["parts"].items() if result["error"]]
    return 1 if failed else 0


def supervised(part: str, seconds: float, dry: bool) -> dict[str, Any]:
    """What a part measured in a process of its own, and why it ended early if it did.

    {machine, rows, error, seconds}; error is None if all went well.
    """
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "part.json"
        command = [sys.executable, str(HERE / "run.py"), "--part", part]
        command += ["--seconds", str(seconds), "--result", str(result)]
        command += ["--dry-run"] if dry else []
        try:
            ended = subprocess.run(command, timeout=seconds, check=False).returncode
            error = None if ended == 0 else f"ended with exit code {ended}"
        except subprocess.TimeoutExpired:
            error = f"stopped after {seconds:.0f} s"
        found = json.loads(result.read_text()) if result.is_file() else {"rows": [], "error": None}
    found["error"] = found["error"] or error
    return {**found, "seconds": round(time.monotonic() - start, 1)}


def run_part(part: str, seconds: float, dry: bool, result: Path) -> int:
    """In the part's own process: measure, and write each row as soon as there is one."""
    found: dict[str, Any] = {"machine": {}, "rows": [], "error": None}
    end = time.monotonic() + OWN_LIMIT * seconds

    def add(row: dict[str, Any]) -> None:
        found["rows"].append(row)
        write(result, found)

    try:
        found["machine"] = machine()
        measure: Callable[..., None] = importlib.import_module(MODULES[part]).measure
        measure(add, end, dry)
    except Exception as error:  # noqa: BLE001 - whatever it is, it belongs into the report
        traceback.print_exc()
        found["error"] = f"{type(error).__name__}: {error}"
    write(result, found)
    return 1 if found["error"] else 0


def machine() -> dict[str, Any]:
    """What the numbers hold for."""
    import torch
    import triton

    described = {"torch": torch.__version__, "triton": triton.__version__}
    if torch.cuda.is_available():
        device = torch.cuda.get_device_properties(0)
        described |= {
            "device": device.name,
            "memory_gib": round(device.total_memory / 2**30, 1),
            "processors": device.multi_processor_count,
            "cuda": torch.version.cuda or torch.version.hip,
        }
    else:
        described["device"] = platform.processor() or platform.machine()
    return described


def write(path: Path, found: dict[str, Any]) -> None:
    """Replace the file as a whole: a reader sees the old or the new one."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(json.dumps(found, indent=1) + "\n")
    new.replace(path)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes on the CPU")
    parser.add_argument("--out", type=Path, default=Path("gpu.json"), help="default: gpu.json")
    parser.add_argument("--minutes", type=float, default=9.5, help="for all parts; default 9.5")
    parser.add_argument("--only", choices=MODULES, action="append", help="may be repeated")
    parser.add_argument("--part", choices=MODULES, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not arguments.dry_run:
        _refuse_without_gpu(parser)
    return arguments


def _refuse_without_gpu(parser: argparse.ArgumentParser) -> None:
    try:
        import torch
        import triton  # noqa: F401
    except ImportError as error:
        parser.error(f"{error}; this script needs torch and triton")
    if not torch.cuda.is_available():
        parser.error("torch sees no GPU here; --dry-run shows on the CPU that the script works")
    if os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y"):
        parser.error("TRITON_INTERPRET is set: kernels would be interpreted; unset it")


if __name__ == "__main__":
    sys.exit(main())
