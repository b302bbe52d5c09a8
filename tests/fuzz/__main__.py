"""Fuzz draftwood: `python -m tests.fuzz --cases 10000 --seed 0`, from the repository's root.

Each worker runs a stretch of seeds under limits of time for a case (SIGALRM) and of memory
(its peak). Exits with 1 and prints kind and seed of every case that failed.
"""

# ruff: noqa: T201 - a command
import argparse
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.fuzz.cases import CASES, SLOW_CASES, run

SECONDS, MEGABYTES = 10, 2048


class Hang(BaseException):
    """A case that took too long."""


def _alarm(*_: object) -> None:
    raise Hang(f"more than {SECONDS} s")


def main() -> int:
    """Run the cases; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--slow-every", type=int, default=20, help="one slow case in so many")
    arguments = parser.parse_args()
    signal.signal(signal.SIGALRM, _alarm)
    done, failures, slowest = Counter[str](), list[str](), 0.0
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(arguments.seed, arguments.seed + arguments.cases):
            kinds = SLOW_CASES if seed % arguments.slow_every == 0 else CASES
            kind = kinds[seed // (arguments.slow_every if kinds is SLOW_CASES else 1) % len(kinds)]
            start = time.perf_counter()
            signal.alarm(SECONDS)
            finding = run(kind, seed, Path(folder))
            signal.alarm(0)
            slowest = max(slowest, time.perf_counter() - start)
            done[kind.__name__] += 1
            if finding:
                failures.append(f"{kind.__name__} {seed}: {finding}")
                print(failures[-1], flush=True)
            if (seed + 1) % 1000 == 0:
                print(f"{sum(done.values())} cases, {len(failures)} failed", file=sys.stderr)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    kinds_done = ", ".join(f"{name} {count}" for name, count in sorted(done.items()))
    print(f"{sum(done.values())} cases ({kinds_done}): {len(failures)} failed")
    print(f"slowest case {slowest:.2f} s, peak memory {peak} MB")
    return 1 if failures or peak > MEGABYTES else 0


if __name__ == "__main__":
    sys.exit(main())
