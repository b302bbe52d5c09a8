"""Targets with quantised weights: which of them score a tree as they score a text."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from draftwood.core.errors import UnsupportedTarget

_ACTIVATION_SETTINGS = ("load_in_8bit", "activation_scheme", "activations")
"""Names in quantisation configurations: bitsandbytes, fine-grained fp8, quanto."""

_ACTIVATION_METHODS = ("bitnet", "fbgemm_fp8")
"""Methods that always round activations, too."""

_WEIGHT_ATTRIBUTES = ("act_quant_kwargs", "activation_quantization")
"""Where torchao's weights keep how their activations are rounded, None if they are not."""


def is_plain(weight: object) -> TypeGuard[Tensor]:
    """Whether a weight holds its numbers as they are, perhaps split over processes."""
    return type(weight) in (nn.Parameter, Tensor, DTensor)


def stored_parts(weight: Tensor) -> Sequence[Tensor]:
    """The tensors that a weight is stored as: itself, or the integers and scales of torchao's."""
    if is_plain(weight) or not hasattr(weight, "__tensor_flatten__"):
        return [weight]
    names, _ = weight.__tensor_flatten__()
    return [getattr(weight, name) for name in names]


def refuse_quantised_activations(model: Any) -> None:
    """Refuse a model that rounds activations to few bits during its forward.

    The same row has other last bits in forwards of other shapes. Plain rounding keeps that small,
    but a rounded activation moves by a whole step. LLM.int8 moreover chooses its outlier columns
    from all rows, rejected drafts included. Quantised weights alone do neither.

    Raises:
        UnsupportedTarget: its configuration or one of its weights says so.
    """
    if how := _from_config(model.config) or _from_weights(model):
        raise UnsupportedTarget(
            f"{type(model).__name__} quantises activations ({how}): a last bit that differs "
            "between a tree and a text becomes a whole step, so texts would differ; quantise the "
            "weights only (4-bit weights in bitsandbytes, weight-only configurations in torchao)"
        )


def _from_config(config: Any) -> str:
    settings = getattr(config, "quantization_config", None) or {}
    if not isinstance(settings, Mapping):
        settings = vars(settings) | {"load_in_8bit": getattr(settings, "load_in_8bit", None)}
    method = str(getattr(settings.get("quant_method"), "value", settings.get("quant_method")))
    if method in _ACTIVATION_METHODS:
        return method
    return next((f"{method}: {name}" for name in _ACTIVATION_SETTINGS if settings.get(name)), "")


def _from_weights(model: Any) -> str:
    for name, weight in model.named_parameters():
        if any(getattr(weight, key, None) is not None for key in _WEIGHT_ATTRIBUTES):
            return f"{type(weight).__name__} of {name}"
    return ""
