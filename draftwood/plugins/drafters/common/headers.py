"""Headers of safetensors files, checked against the files' sizes. Imports no torch.

A file is 8 bytes of length (little endian), that many bytes of JSON with each tensor's dtype, shape
and offsets, and then the tensors. A truncated download still has the whole header.
"""

import json
import math
import operator
from pathlib import Path
from typing import Any

from attrs import frozen

from draftwood.core.errors import CheckpointError

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLE = "pytorch_model.bin"
MAX_HEADER_BYTES = 100_000_000
"""The limit of the safetensors library itself."""

WIDTHS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64"), 8),
}
"""Bytes of an element by dtype."""


@frozen
class Entry:
    """Dtype and shape of a tensor."""

    dtype: str
    shape: tuple[int, ...]


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint folder; empty if it has none.

    Raises:
        CheckpointError: The index of a sharded checkpoint is malformed, or a shard is missing.
    """
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    index = folder / INDEX
    if not index.is_file():
        return []
    try:
        shards = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{index}: no weight_map of tensor to file ({error!r})") from error
    if missing := [shard for shard in shards if not (folder / shard).is_file()]:
        raise CheckpointError(f"{folder}: {INDEX} names missing files: {', '.join(missing)}")
    return [folder / shard for shard in shards]


def read_header(path: Path) -> dict[str, Entry]:
    """The tensors of one file by name; reads only its header.

    Raises:
        CheckpointError: It is not a safetensors file, the offsets of a tensor do not match its
            shape, or the tensors do not fill the file exactly.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
            raise CheckpointError(f"{path}: not a safetensors file, or truncated in its header")
        try:
            header: dict[str, Any] = json.loads(file.read(length))
            header.pop("__metadata__", None)
            offsets = sorted((*entry["data_offsets"], name) for name, entry in header.items())
            entries = {
                name: Entry(str(entry["dtype"]), tuple(map(operator.index, entry["shape"])))
                for name, entry in header.items()
            }
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            raise CheckpointError(f"{path}: not a safetensors header ({error!r})") from error
    at = 0
    for begin, end, name in offsets:
        entry = entries[name]
        needed = WIDTHS.get(entry.dtype, 0) * math.prod(entry.shape)
        if begin != at or (needed and end - begin != needed):
            raise CheckpointError(
                f"{path}: {name}, {entry.dtype} {list(entry.shape)}, cannot lie at bytes {begin} "
                f"to {end}, behind {at}"
            )
        at = end
    described = 8 + length + at
    if described != size:
        raise CheckpointError(
            f"{path}: its header describes {described} bytes and it has {size}: it "
            f"{'was truncated' if size < described else 'has additional bytes'}"
        )
    return entries


def read_headers(folder: Path) -> dict[str, Entry]:
    """The tensors of all safetensors files of a folder, of which there must be one."""
    files = weight_files(folder)
    if not files:
        raise missing_weights(folder)
    return {name: entry for path in files for name, entry in read_header(path).items()}


def missing_weights(folder: Path) -> CheckpointError:
    """The error for a folder without safetensors files."""
    if (folder / PICKLE).is_file():
        return CheckpointError(
            f"{folder}: the only weights are {PICKLE}, a pickle; convert them to {SINGLE}, or set "
            "allow_pickle: true if you trust their author"
        )
    return CheckpointError(f"{folder}: has neither {SINGLE} nor {INDEX}")
