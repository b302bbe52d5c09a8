"""Reading a checkpoint's tensors: safetensors, whole or in shards; pickles only when asked."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from draftwood.core.errors import CheckpointError
from draftwood.plugins.drafters.common.headers import (
    PICKLE,
    Entry,
    missing_weights,
    read_header,
    weight_files,
)

log = logging.getLogger("draftwood")


def read_weights(folder: Path | str, allow_pickle: bool = False) -> dict[str, Tensor]:
    """Every tensor of a checkpoint folder by its published name.

    Raises CheckpointError if there are no weights, a shard of the index is missing, or the only
    weights are pickled and allow_pickle is off: a pickle may run code when it is read.
    """
    folder = Path(folder)
    if files := weight_files(folder):
        return {name: tensor for path in files for name, tensor in _load(path).items()}
    if (folder / PICKLE).is_file() and allow_pickle:
        log.warning("%s is a pickle: it may run code while it is read", folder / PICKLE)
        return torch.load(folder / PICKLE, map_location="cpu", weights_only=True)
    raise missing_weights(folder)


def _load(path: Path) -> dict[str, Tensor]:
    read_header(path)  # says in words what is wrong with a file that was cut off
    try:
        return load_file(path)
    except Exception as error:
        raise CheckpointError(f"{path}: not a readable safetensors file ({error})") from error


_DTYPES = {
    "BOOL": torch.bool,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}


def outlines(headers: Mapping[str, Entry], folder: Path) -> dict[str, Tensor]:
    """Tensors without storage, as headers describe them: what a model can be fitted with, to see
    whether it would load. Raises CheckpointError for a dtype that no drafter runs in."""
    found = {}
    for name, entry in headers.items():
        if entry.dtype not in _DTYPES:
            raise CheckpointError(
                f"{folder}: {name} is {entry.dtype}; choices: {', '.join(_DTYPES)}"
            )
        found[name] = torch.empty(entry.shape, dtype=_DTYPES[entry.dtype], device="meta")
    return found


def renamed(name: str, prefixes: Mapping[str, str]) -> str:
    """`name` with the first of `prefixes` that it has replaced."""
    for old, new in prefixes.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name


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

    Raises CheckpointError unless they are distinct and inside the target's vocabulary: a
    distribution over repeated ids would not be one."""
    ids = d2t.long() + torch.arange(d2t.shape[0], device=d2t.device)
    if ids.is_meta:
        return ids  # an outline has no values to check
    if int(ids.min()) < 0 or int(ids.max()) >= vocab_size:
        raise CheckpointError(
            f"{folder}: d2t leads to ids {int(ids.min())} to {int(ids.max())}, outside a "
            f"vocabulary of {vocab_size}; it must hold offsets, target id - draft id"
        )
    if len(ids.unique()) < len(ids):
        raise CheckpointError(f"{folder}: d2t maps two draft tokens to one target token")
    return ids
