"""The whole grid of toy pipelines, resumable: `python -m draftwood.testing.grid --out FILE`.

Each cell's result is a line of FILE, written when it is known; cells that are there already are
not run again. The order is shuffled, so that an interrupted run is a fair sample of the grid.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from attrs import asdict

from draftwood.testing.cells import Cell
from draftwood.testing.covering import grid
from draftwood.testing.exact import TOLERANCE
from draftwood.testing.toys import seeded


def read(out: Path) -> dict[str, dict[str, Any]]:
    """Results of earlier runs by cell; a line that an interrupt cut short does not count."""
    found = {}
    for line in out.read_text(encoding="utf-8").splitlines() if out.exists() else ():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        found[record["cell"]] = record
    return found


def remaining(out: Path) -> list[Cell]:
    done = read(out)
    cells = [cell for cell in grid() if repr(cell) not in done]
    seeded("grid").shuffle(cells)
    return cells


def run(cells: Sequence[Cell], file: TextIO) -> Iterator[dict[str, Any]]:
    """Enumerate each cell and append its record to `file`."""
    for cell in cells:
        start = time.process_time()
        comparison = cell.compare()
        record = {
            "cell": repr(cell),
            **asdict(cell),
            "max_error": comparison.max_error,
            "sequences": comparison.sequences,
            "seconds": round(time.process_time() - start, 3),
        }
        file.write(json.dumps(record) + "\n")
        file.flush()
        yield record


def summary(out: Path) -> str:
    """How many cells of each rule and tree are known, and the largest error."""
    records = list(read(out).values())
    whole = grid()
    lines = []
    for rule, tree in sorted({(cell.verifier, cell.tree) for cell in whole}):
        mine = [r for r in records if (r["verifier"], r["tree"]) == (rule, tree)]
        total = sum((cell.verifier, cell.tree) == (rule, tree) for cell in whole)
        worst = max((r["max_error"] for r in mine), default=0.0)
        lines.append(
            f"{rule:<12} {tree:<16} {len(mine):>4} of {total:<4} largest error {worst:.1e}"
        )
    wrong = sum(record["max_error"] > TOLERANCE for record in records)
    sequences = sum(record["sequences"] for record in records)
    lines.append(f"{len(records)} of {len(whole)} cells, {sequences} sequences, {wrong} biased")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 if any cell is biased."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="results, a JSON line a cell")
    parser.add_argument("--limit", type=int, default=None, help="most cells to add in this run")
    given = parser.parse_args(arguments)
    with given.out.open("a", encoding="utf-8") as file:
        for record in run(remaining(given.out)[: given.limit], file):
            if record["max_error"] > TOLERANCE:
                sys.stderr.write(f"biased by {record['max_error']:.3g}: {record['cell']}\n")
    text = summary(given.out)
    sys.stdout.write(text + "\n")
    return int(not text.endswith(" 0 biased"))


if __name__ == "__main__":
    sys.exit(main())
