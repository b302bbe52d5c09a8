"""The kernels' own tests, on the device."""

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CORE, VERIFIER = "tests/core/kernels/triton", "tests/plugins/verifiers/triton"
KERNELS = (f"{CORE}/test_attention.py", f"{VERIFIER}/test_judge.py")
PIPELINES = (f"{CORE}/test_compaction.py", f"{VERIFIER}/test_attention_rounds.py")
"""These import transformers."""
DRY = (f"{CORE}/test_compaction.py",)


def measure(add: Callable[[dict[str, Any]], None], end: float, dry: bool) -> None:
    """Counts by file; failed tests by name.

    Raises:
        RuntimeError: A test failed, or none ran.
    """
    names = DRY if dry else (*KERNELS, *(PIPELINES if _installed("transformers") else ()))
    missing = [name for name in ("pytest", "hypothesis") if not _installed(name)]
    if missing:
        raise RuntimeError(f"the tests need {' and '.join(missing)}")
    failed = []
    for name in names:
        row = _run(name, end, dry)
        add(row)
        failed += row["failed"] or ([] if row["passed"] else [f"{name}: none ran"])
    if failed:
        raise RuntimeError(f"{len(failed)} failed: {', '.join(failed[:5])}")


def _run(name: str, end: float, dry: bool) -> dict[str, Any]:
    """One file; of a file that is stopped at `end`, the tests that ended before."""
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider"]
    command += ["-m", "not slow and not timing", name]
    if not dry and _installed("xdist"):  # each shape is compiled first, which is the host's work
        command += ["-n", str(min(8, os.cpu_count() or 1))]
    environment = {**os.environ, "TRITON_INTERPRET": "1" if dry else "0"}
    start, late = time.monotonic(), False
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
            timeout=max(1.0, end - start),
        )  # fmt: skip
        text = done.stdout
    except subprocess.TimeoutExpired as stopped:
        late, shown = True, stopped.stdout or b""
        text = shown.decode() if isinstance(shown, bytes) else shown
    outcomes = outcomes_of(text)
    failed = [test for test, outcome in outcomes.items() if outcome in ("FAILED", "ERROR")]
    return {
        "case": Path(name).name,
        "passed": sum(outcome == "PASSED" for outcome in outcomes.values()),
        "skipped": sum(outcome == "SKIPPED" for outcome in outcomes.values()),
        "failed": failed,
        "stopped": late,
        "seconds": round(time.monotonic() - start, 1),
        "output": text[-4000:] if failed or not outcomes else "",
    }


def outcomes_of(text: str) -> dict[str, str]:
    """Test -> outcome, from the output of `pytest -v` with or without workers."""
    found = {}
    for line in text.splitlines():
        words = line.split()
        marks = {"PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL"} & set(words)
        tests = [word for word in words if word.startswith("tests/") and "::" in word]
        if marks and tests:
            found[tests[0]] = marks.pop()
    return found


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None
