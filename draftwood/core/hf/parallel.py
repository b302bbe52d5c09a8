"""Targets on several devices: layers split over processes, or spread over one process's GPUs."""

import os
from importlib.util import find_spec
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig
from transformers.distributed import DistributedConfig

from draftwood.core import processes
from draftwood.core.errors import ConfigError, Problem

Parallel = Literal["none", "tensor", "layers"]

WHOLE = "replicated_with_grad_allreduce"
"""transformers' name for a module that every process holds all of."""


def placement(parallel: Parallel, model: str, **options: Any) -> dict[str, Any]:
    """Keywords of `from_pretrained` that place a model on several devices; {} for one device.

    Args:
        options: those that the model's config is loaded with.

    Raises:
        ConfigError: the launcher (torchrun) or accelerate is missing.
    """
    if parallel == "none":
        return {}
    if find_spec("accelerate") is None:
        hint = "pip install draftwood[distributed]"
        raise _refused(f"{parallel} needs accelerate, which is not installed", hint)
    if parallel == "layers":
        return {"device_map": "auto"}
    if not dist.is_torchelastic_launched():
        raise _refused(
            "tensor needs several processes, and this one was started alone",
            "torchrun --nproc-per-node 8 -m draftwood run ...",
        )
    config = AutoConfig.from_pretrained(model, **options)
    plan: Any = _whole_attention(config, int(os.environ["WORLD_SIZE"])) or "auto"
    return {"distributed_config": DistributedConfig(tp_plan=plan)}


def _whole_attention(config: Any, size: int) -> dict[str, str]:
    """The model's own plan with attention whole in every process, if the K/V heads cannot be
    distributed evenly; else {}."""
    inner = config.get_text_config(decoder=True)
    heads = getattr(inner, "num_key_value_heads", None) or inner.num_attention_heads
    own = inner.base_model_tp_plan or {}
    if heads % size == 0:
        return {}
    kind = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    return {
        f"{kind.base_model_prefix}.{name}": WHOLE if ".self_attn." in name else style
        for name, style in own.items()
    }


def is_split(model: Any) -> bool:
    """Whether other processes hold parts of this model's weights."""
    return _mesh(model) is not None


def decide_together(model: Any) -> None:
    """If the model is split, let its processes take their decisions together from now on.

    A decision is a few numbers on the host. They go through a separate gloo group, so that none
    waits for a device.
    """
    mesh = _mesh(model)
    if mesh is None or processes.is_distributed():
        return
    ranks = sorted(mesh.mesh.flatten().tolist())
    group = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
    processes.join(group)


def whole(weight: Tensor, device: torch.device) -> Tensor:
    """All of a weight that may be split, on `device`. Every process must call this."""
    if isinstance(weight, DTensor):
        weight = weight.full_tensor()
    return weight.to(device)


def _mesh(model: Any) -> Any | None:
    split = (p for p in model.parameters() if isinstance(p, DTensor))
    return next((p.device_mesh for p in split if p.device_mesh.size() > 1), None)


def _refused(message: str, hint: str) -> ConfigError:
    return ConfigError([Problem("", "runtime.parallel", message, (hint,))])
