"""Whether a checkpoint gave a model all of its weights, and only weights that the model has."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from draftwood.core.errors import CheckpointError
from draftwood.core.hf.quantised import stored_parts

FEWEST = 1.5
"""Parameters that a configuration may describe for each one stored; tied ones are stored once."""

_SHOWN = 6
"""Tensors that an error names before it counts the rest."""


def refuse_damaged(model: nn.Module, info: Mapping[str, Any], source: str) -> None:
    """Raise CheckpointError unless every weight of `model` came from its checkpoint.

    transformers fills missing weights with random numbers and reports them in a log. It ignores
    tensors that the model does not have. They are refused here if they belong to a module, or to
    a list of layers, that the model does have: the checkpoint then computes something else. Whole
    modules that it does not have (a vision tower, a prediction head) are left alone.

    Args:
        info: what `from_pretrained(..., output_loading_info=True)` returned beside the model.
        source: what errors call the checkpoint.
    """
    missing = sorted(info["missing_keys"])
    unexpected = sorted(info["unexpected_keys"])
    if not missing:
        unexpected = [name for name in unexpected if _belongs(model, name)]
    shapes = [
        f"{name} is {tuple(found)}, the configuration says {tuple(configured)}"
        for name, found, configured in sorted(info["mismatched_keys"])
    ]
    faults = {
        "missing": missing,
        "not understood": unexpected,
        "of another shape": shapes,
        "not read": list(info.get("error_msgs", ())),
    }
    if any(faults.values()):
        lines = [f"  {fault}: {_listed(names)}" for fault, names in faults.items() if names]
        raise CheckpointError(
            f"the weights of target {source!r} are not those of its configuration "
            f"({type(model).__name__}):\n"
            + "\n".join(lines)
            + "\n  configuration and weights must come from one checkpoint"
        )


def refuse_too_few(folder: Path, config: Any, source: str) -> None:
    """Raise CheckpointError if the weights in `folder` are far fewer than the configuration's.

    transformers would allocate the missing ones and fill them with random numbers: a few bytes of
    configuration could ask for all memory. Only shapes are made here.

    Args:
        config: of the model, as `AutoConfig` reads it.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files or getattr(config, "quantization_config", None) is not None:
        return
    stored = 0
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            shapes = (tensors.get_slice(name).get_shape() for name in tensors.keys())  # noqa: SIM118
            stored += sum(math.prod(shape) for shape in shapes)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    expected = sum(weight.numel() for weight in model.parameters())
    if expected > FEWEST * stored:
        raise CheckpointError(
            f"the weights of target {source!r} are not those of its configuration "
            f"({type(model).__name__}): it describes {expected:,} parameters, the files hold "
            f"{stored:,}"
        )


def refuse_not_finite(model: nn.Module, source: str) -> None:
    """Raise CheckpointError naming the first weights that are NaN or infinite."""
    bad = [
        name
        for name, weight in model.named_parameters()
        if weight.device.type != "meta" and not all(map(_is_finite, stored_parts(weight.detach())))
    ]
    if bad:
        raise CheckpointError(f"{source!r}: not finite (NaN or infinite): {_listed(bad)}")


def _is_finite(weight: Tensor) -> bool:
    """Whether a tensor has no NaN or infinity; integers and fp8 numbers are not read."""
    if not weight.is_floating_point() or weight.dtype.itemsize < 2:
        return True
    return bool(torch.isfinite(weight.sum(dtype=torch.float64)) or torch.isfinite(weight).all())


def _belongs(model: nn.Module, tensor: str) -> bool:
    """Whether a tensor of this name would belong to a module or a list that the model has."""
    modules = dict(model.named_modules())
    prefix = getattr(model, "base_model_prefix", "")
    for name in (tensor, f"{prefix}.{tensor}"):
        owner = name.rpartition(".")[0]
        if owner and owner in modules:
            return True
        layers = re.match(r"(.+?)\.\d+\.", name)
        if layers and isinstance(modules.get(layers[1]), nn.ModuleList):
            return True
    return False


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
