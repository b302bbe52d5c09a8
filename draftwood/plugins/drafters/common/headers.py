"""What safetensors files say of themselves, checked against their size. Imports no torch.

A file is 8 bytes of length (little endian), that many bytes of JSON with each tensor's dtype, shape
and place, and then the tensors. A download that was cut off still has the whole header.
"""

import json
import math
from pathlib import Path
from typing import Any

from attrs import frozen

from draftwood.core.errors import CheckpointError

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLE = "pytorch_model.bin"

WIDTHS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64"), 8),
}
"""Bytes of an element by dtype."""


@frozen
class Entry:
    """A tensor as its header describes it."""

    dtype: str
    shape: tuple[int, ...]


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint folder; empty if it has none.

    Raises CheckpointError if the index of a sharded one is malformed or a shard is missing.
    """
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    index = folder / INDEX
    if not index.is_file():
        return []
    try:
        shards = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{index}: no weight_map of tensor to file ({error!r})") from error
    if missing := [shard for shard in shards if not (folder / shard).is_file()]:
        raise CheckpointError(f"{folder}: {INDEX} names {', '.join(missing)}: not there")
    return [folder / shard for shard in shards]


def read_header(path: Path) -> dict[str, Entry]:
    """The tensors of one file by name; reads nothing but its header.

    Raises CheckpointError if it is no safetensors file, if a tensor's place does not have the
    size of its shape, or if the places do not fill the file exactly.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise CheckpointError(f"{path}: not a safetensors file, or one cut off in its header")
        try:
            header: dict[str, Any] = json.loads(file.read(length))
            header.pop("__metadata__", None)
            places = [(*entry["data_offsets"], name) for name, entry in header.items()]
            found = {
                name: Entry(entry["dtype"], tuple(entry["shape"])) for name, entry in header.items()
            }
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise CheckpointError(f"{path}: not a safetensors header ({error!r})") from error
    at = 0
    for begin, end, name in sorted(places):
        entry = found[name]
        needed = WIDTHS.get(entry.dtype, 0) * math.prod(entry.shape)
        if begin != at or (needed and end - begin != needed):
            raise CheckpointError(
                f"{path}: {name}, {entry.dtype} {list(entry.shape)}, cannot lie at bytes {begin} "
                f"to {end}, behind {at}"
            )
        at = end
    if 8 + length + at != size:
        raise CheckpointError(
            f"{path}: its header describes {8 + length + at} bytes and it has {size}: it was "
            f"{'cut off' if size < 8 + length + at else 'added to'}"
        )
    return found


def read_headers(folder: Path) -> dict[str, Entry]:
    """The tensors of all of a folder's safetensors files. Raises CheckpointError if it has none."""
    files = weight_files(folder)
    if not files:
        raise missing_weights(folder)
    return {name: entry for path in files for name, entry in read_header(path).items()}


def missing_weights(folder: Path) -> CheckpointError:
    """What to say of a folder without safetensors."""
    if (folder / PICKLE).is_file():
        return CheckpointError(
            f"{folder}: the only weights are {PICKLE}, a pickle; convert them to {SINGLE}, or set "
            "allow_pickle: true if you trust their author"
        )
    return CheckpointError(f"{folder}: neither {SINGLE} nor {INDEX} is there")
