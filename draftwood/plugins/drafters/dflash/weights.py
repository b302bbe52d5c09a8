"""Reading a checkpoint's tensors: safetensors, whole or in shards; pickles only when asked."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from draftwood.core.errors import CheckpointError

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLE = "pytorch_model.bin"


def read_weights(folder: Path | str, allow_pickle: bool = False) -> dict[str, Tensor]:
    """Every tensor of a checkpoint folder by its published name.

    Raises CheckpointError if there are no weights, a shard of the index is missing, or the only
    weights are pickled and allow_pickle is off: a pickle may run code when it is read.
    """
    folder = Path(folder)
    if (folder / SINGLE).is_file():
        return _load(folder / SINGLE)
    if (folder / INDEX).is_file():
        names = json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"]
        shards = sorted(set(names.values()))
        if missing := [shard for shard in shards if not (folder / shard).is_file()]:
            raise CheckpointError(f"{folder}: {INDEX} names {', '.join(missing)}: not there")
        return {k: v for shard in shards for k, v in _load(folder / shard).items()}
    if (folder / PICKLE).is_file():
        if not allow_pickle:
            raise CheckpointError(
                f"{folder}: the only weights are {PICKLE}, a pickle; convert them to "
                f"{SINGLE}, or set allow_pickle: true if you trust their author"
            )
        return torch.load(folder / PICKLE, map_location="cpu", weights_only=True)
    raise CheckpointError(f"{folder}: neither {SINGLE} nor {INDEX} is there")


def _load(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except Exception as error:
        raise CheckpointError(f"{path}: not a readable safetensors file ({error})") from error
