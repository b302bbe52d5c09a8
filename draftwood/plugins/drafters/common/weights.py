"""Reads tensors of checkpoints: safetensors, whole or sharded; pickles only if allowed."""

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

    Raises:
        CheckpointError: There are no weights, a shard is missing, or the only weights are pickled
            and `allow_pickle` is off: reading a pickle may run code.
    """
    folder = Path(folder)
    if files := weight_files(folder):
        return {name: tensor for path in files for name, tensor in _load(path).items()}
    if (folder / PICKLE).is_file() and allow_pickle:
        log.warning("%s is a pickle: it may run code while it is read", folder / PICKLE)
        return torch.load(folder / PICKLE, map_location="cpu", weights_only=True)
    raise missing_weights(folder)


def _load(path: Path) -> dict[str, Tensor]:
    read_header(path)  # its errors say what is wrong with a truncated file
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
    """Tensors without storage, to check whether a model would load.

    Raises:
        CheckpointError: A dtype that no drafter runs in.
    """
    for name, entry in headers.items():
        if entry.dtype not in _DTYPES:
            raise CheckpointError(
                f"{folder}: {name} is {entry.dtype}; choices: {', '.join(_DTYPES)}"
            )
    return {
        name: torch.empty(entry.shape, dtype=_DTYPES[entry.dtype], device="meta")
        for name, entry in headers.items()
    }


def renamed(name: str, prefixes: Mapping[str, str]) -> str:
    """`name` with the first matching prefix of the keys replaced by its value."""
    for old, new in prefixes.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name


def fit(
    model: nn.Module,
    tensors: Mapping[str, Tensor],
    folder: Path | str,
    published: Callable[[str], str],
) -> None:
    """Replace all parameters and buffers of `model`, or none, and freeze them.

    Args:
        tensors: By the model's own names.
        published: Turns a name of the model into the checkpoint's, for errors.

    Raises:
        CheckpointError: Names every missing or unexpected tensor, else one of a wrong shape, else
            one that has NaN or infinite values.
    """
    state = model.state_dict()
    lines = [f"  missing: {published(name)}" for name in sorted(state.keys() - tensors.keys())]
    lines += [f"  unexpected: {published(name)}" for name in sorted(tensors.keys() - state.keys())]
    if lines:
        listed = "\n".join(lines)
        raise CheckpointError(f"{folder}: the weights do not fit config.json\n{listed}")
    for name, tensor in state.items():
        if tensor.shape != tensors[name].shape:
            raise CheckpointError(
                f"{folder}: {published(name)} is {tuple(tensors[name].shape)}, and config.json "
                f"makes it {tuple(tensor.shape)}"
            )
    for name, tensor in tensors.items():
        if not is_finite(tensor):
            raise CheckpointError(
                f"{folder}: {published(name)} has NaN or infinite values; the file is damaged, or "
                "training diverged"
            )
    model.load_state_dict(tensors, assign=True)
    model.requires_grad_(requires_grad=False)


def is_finite(tensor: Tensor) -> bool:
    """Whether no value is NaN or infinite; True for tensors without values or of integers."""
    if tensor.is_meta or not tensor.is_floating_point():
        return True
    wide = tensor.float() if tensor.element_size() == 1 else tensor  # no isfinite for float8
    return bool(wide.isfinite().all())


def check_target_ids(d2t: Tensor, vocab_size: int, folder: Path | str) -> None:
    """Check offsets of a draft vocabulary, target id - draft id.

    Raises:
        CheckpointError: Target ids are repeated or outside the target's vocabulary, so that a
            distribution over them would not be one.
    """
    if d2t.is_meta:
        return  # no values to check
    ids = d2t + torch.arange(d2t.shape[0], device=d2t.device)
    if int(ids.min()) < 0 or int(ids.max()) >= vocab_size:
        raise CheckpointError(
            f"{folder}: d2t leads to ids {int(ids.min())} to {int(ids.max())}, outside a "
            f"vocabulary of {vocab_size}; it must hold offsets, target id - draft id"
        )
    if len(ids.unique()) < len(ids):
        raise CheckpointError(f"{folder}: d2t maps two draft tokens to one target token")
