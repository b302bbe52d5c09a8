"""Enumerates the whole grid of toy pipelines: `python -m draftwood.testing.grid --out FILE`.

The result of each pipeline is a line of FILE, written as soon as it is computed. A later run skips
the pipelines that FILE holds. The order is shuffled, so that an interrupted run is a fair sample.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from attrs import asdict

from draftwood.testing.covering import grid
from draftwood.testing.exact import TOLERANCE
from draftwood.testing.toy_pipelines import ToyPipeline
from draftwood.testing.toys import seeded


def read_results(out: Path) -> dict[str, dict[str, Any]]:
    """Results of earlier runs by pipeline, without a last line that an interrupt cut short."""
    results = {}
    for line in out.read_text(encoding="utf-8").splitlines() if out.exists() else ():
        try:
            result = json.loads(line)
        except json.JSONDecodeError:
            continue
        results[result["pipeline"]] = result
    return results


def remaining(out: Path, part: int = 0, parts: int = 1) -> list[ToyPipeline]:
    """Pipelines without a result in `out`, shuffled: those of one part of the grid."""
    done = read_results(out)
    pipelines = grid()
    seeded("grid").shuffle(pipelines)
    return [pipeline for pipeline in pipelines[part::parts] if repr(pipeline) not in done]


def run(pipelines: Sequence[ToyPipeline], file: TextIO) -> Iterator[dict[str, Any]]:
    """Enumerate each pipeline, append its result to `file`, and yield it."""
    for pipeline in pipelines:
        start = time.process_time()
        comparison = pipeline.compare()
        result = {
            "pipeline": repr(pipeline),
            **asdict(pipeline),
            "max_error": comparison.max_error,
            "sequences": comparison.sequences,
            "seconds": round(time.process_time() - start, 3),
        }
        file.write(json.dumps(result) + "\n")
        file.flush()
        yield result


def summary(out: Path) -> str:
    """Finished pipelines and the largest error, by rule and tree."""
    results = list(read_results(out).values())
    totals = Counter((pipeline.verifier, pipeline.tree) for pipeline in grid())
    lines = []
    for (rule, tree), total in sorted(totals.items()):
        errors = [r["max_error"] for r in results if (r["verifier"], r["tree"]) == (rule, tree)]
        lines.append(
            f"{rule:<12} {tree:<16} {len(errors):>4} of {total:<4} "
            f"largest error {max(errors, default=0.0):.1e}"
        )
    biased = sum(result["max_error"] > TOLERANCE for result in results)
    sequences = sum(result["sequences"] for result in results)
    lines.append(
        f"{len(results)} of {totals.total()} pipelines, {sequences} sequences, {biased} biased"
    )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 if any pipeline is biased."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="results, one JSON line each")
    parser.add_argument("--limit", type=int, default=None, help="most pipelines to add in this run")
    parser.add_argument(
        "--part", default="1/1", help="I/N: only the I-th of N equal parts, for N processes"
    )
    options = parser.parse_args(arguments)
    part, parts = map(int, options.part.split("/"))
    with options.out.open("a", encoding="utf-8") as file:
        for result in run(remaining(options.out, part - 1, parts)[: options.limit], file):
            if result["max_error"] > TOLERANCE:
                sys.stderr.write(f"biased by {result['max_error']:.3g}: {result['pipeline']}\n")
    text = summary(options.out)
    sys.stdout.write(text + "\n")
    return int(not text.endswith(" 0 biased"))


if __name__ == "__main__":
    sys.exit(main())
