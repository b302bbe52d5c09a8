"""Finished records on disk, a line each, so that an interrupted benchmark goes on where it was.

The first line says what is measured and on what. A line is written in one piece and flushed to
the device before the next record begins; one that a crash has torn is dropped when it is read.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftwood.bench.records import Record
from draftwood.core.errors import RequestError

FORMAT = 1


class Journal:
    """The records of one benchmark. path: None keeps them in memory only.

    header: everything that records must have in common to be compared; JSON values.
    """

    def __init__(self, path: Path | None, header: Mapping[str, Any]) -> None:
        """Reads what an earlier run left. Raises RequestError if that measured something else, or
        if the file cannot be read or written."""
        self.path = path
        self.records: dict[tuple[str, str, int], Record] = {}
        if path is None:
            return
        head = _line({"format": FORMAT, **header})
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            kept = path.read_bytes() if path.exists() else b""
            whole = kept[: kept.rfind(b"\n") + 1]
            if len(whole) < len(kept):
                os.truncate(path, len(whole))
            lines = whole.splitlines()
            if lines:
                self._check(json.loads(lines[0]), json.loads(head))
            else:
                self._write(head)
        except (OSError, ValueError) as error:
            raise RequestError(f"{path}: {error}") from error
        for number, line in enumerate(lines[1:], 2):
            self._read(number, line)

    def append(self, record: Record) -> None:
        """Keep a record; when this returns it survives a crash."""
        self.records[record.key] = record
        if self.path is not None:
            self._write(_line(record.as_dict()))

    def _write(self, line: bytes) -> None:
        assert self.path is not None
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _read(self, number: int, line: bytes) -> None:
        try:
            record = Record.from_dict(json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            raise RequestError(
                f"{self.path}:{number}: not a record of a benchmark ({error}); give another --out"
            ) from error
        self.records[record.key] = record

    def _check(self, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
        keys = sorted({*found, *wanted})
        other = [key for key in keys if found.get(key) != wanted.get(key)]
        if other:
            raise RequestError(
                f"{self.path} holds another benchmark: {', '.join(other)} differ; "
                "give another --out, or remove that folder"
            )


def _line(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n").encode()
