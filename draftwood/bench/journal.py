"""Finished records on disk, a line each, so that an interrupted benchmark can continue.

The first line says what is measured and on which machine. Each line is written in one piece and
flushed to the device before the next record begins. A line that a crash cut short is dropped when
the file is read.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftwood.bench.records import RequestRecord
from draftwood.core.errors import RequestError

FORMAT = 1


class Journal:
    """The records of one benchmark, those of an earlier run included.

    Args:
        path: Of the file; None keeps records in memory only.
        header: JSON values that all records must share to be compared.

    Raises:
        RequestError: The file belongs to another benchmark, or cannot be read or written.
    """

    def __init__(self, path: Path | None, header: Mapping[str, Any]) -> None:
        self.path = path
        self.records: dict[tuple[str, str, int], RequestRecord] = {}
        if path is None:
            return
        first_line = _line({"format": FORMAT, **header})
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            content = path.read_bytes() if path.exists() else b""
            complete = content[: content.rfind(b"\n") + 1]
            if len(complete) < len(content):
                os.truncate(path, len(complete))
            lines = complete.splitlines()
            if lines:
                self._check(json.loads(lines[0]), json.loads(first_line))
            else:
                self._write(first_line)
        except (OSError, ValueError) as error:
            raise RequestError(f"{path}: {error}") from error
        for number, line in enumerate(lines[1:], 2):
            self._read(number, line)

    def append(self, record: RequestRecord) -> None:
        """Keep a record; it survives a crash once this returns."""
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
            record = RequestRecord.from_dict(json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            raise RequestError(
                f"{self.path}:{number}: not a record of a benchmark ({error}); choose another --out"
            ) from error
        self.records[record.key] = record

    def _check(self, stored: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
        keys = sorted({*stored, *expected})
        different = [key for key in keys if stored.get(key) != expected.get(key)]
        if different:
            raise RequestError(
                f"{self.path} holds another benchmark: {', '.join(different)} differ; "
                "choose another --out, or remove that folder"
            )


def _line(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n").encode()
