"""The files of a report: the same numbers as JSON, CSV, Markdown, Spec-Bench's lines, a page."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draftwood.bench.records import RequestRecord
from draftwood.bench.reports.page import page
from draftwood.bench.reports.spec_bench import spec_bench
from draftwood.bench.reports.tables import csv_table, markdown
from draftwood.core.errors import RequestError

__all__ = ["csv_table", "markdown", "page", "spec_bench", "write"]


def write(folder: Path, report: Mapping[str, Any], records: Sequence[RequestRecord]) -> list[Path]:
    """Write every form of a report into `folder`, each file whole or not at all.

    Returns the files. Raises RequestError if one cannot be written.
    """
    texts = {
        "report.json": json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False) + "\n",
        "report.csv": csv_table(report),
        "report.md": markdown(report),
        "report.jsonl": spec_bench(report, records),
        "report.html": page(report, records),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as own:
            for name, text in texts.items():
                written = Path(own) / name
                written.write_text(text, encoding="utf-8")
                written.replace(folder / name)
    except OSError as error:
        raise RequestError(f"--out {folder}: {error.strerror}") from error
    return [folder / name for name in texts]
