"""Reading a checkpoint's tensors: safetensors, whole or in shards; pickles only when asked."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

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


def fit(
    model: nn.Module,
    found: Mapping[str, Tensor],
    folder: Path | str,
    published: Callable[[str], str],
) -> None:
    """Make `found` the parameters and buffers of `model`, frozen; all of them or none.

    found: by the model's own names, which `published` turns into the checkpoint's for errors.
    Raises CheckpointError naming every missing or unexpected tensor, else one of a wrong shape.
    """
    state = model.state_dict()
    lines = [f"  missing: {published(name)}" for name in sorted(state.keys() - found.keys())]
    lines += [f"  unexpected: {published(name)}" for name in sorted(found.keys() - state.keys())]
    if lines:
        listed = "\n".join(lines)
        raise CheckpointError(f"{folder}: the weights do not fit config.json\n{listed}")
    for name, tensor in state.items():
        if tensor.shape != found[name].shape:
            raise CheckpointError(
                f"{folder}: {published(name)} is {tuple(found[name].shape)}, and config.json "
                f"makes it {tuple(tensor.shape)}"
            )
    model.load_state_dict(found, assign=True)
    model.requires_grad_(requires_grad=False)


def target_ids(d2t: Tensor, vocab_size: int, folder: Path | str) -> Tensor:
    """(V_draft,) int64 target ids from the offsets that checkpoints store: id + d2t[id].

    Raises CheckpointError unless they are distinct and inside the target's vocabulary: a law
    over repeated ids would not be one.
    """
    ids = d2t.long() + torch.arange(d2t.shape[0], device=d2t.device)
    if int(ids.min()) < 0 or int(ids.max()) >= vocab_size:
        raise CheckpointError(
            f"{folder}: d2t leads to ids {int(ids.min())} to {int(ids.max())}, outside a "
            f"vocabulary of {vocab_size}; it must hold offsets, target id - draft id"
        )
    if len(ids.unique()) < len(ids):
        raise CheckpointError(f"{folder}: d2t maps two draft tokens to one target token")
    return ids
