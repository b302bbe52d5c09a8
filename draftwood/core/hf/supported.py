"""Which models can be targets, as far as their class and configuration say."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from draftwood.core.errors import DraftwoodError, UnsupportedTarget
from draftwood.core.hf.masks import layer_kinds
from draftwood.core.hf.quantised import refuse_quantised_activations
from draftwood.core.hf.versions import accepts, cache_keyword, text_config
from draftwood.core.options import CONSTRAINTS

ATTENTIONS = ("sdpa", "eager")
SUPPORTED_LAYERS = ("full_attention", "sliding_attention")


def refuse_unsupported(model: Any) -> None:
    """Raise UnsupportedTarget for what the model's class or configuration rules out."""
    config, name = text_config(model), type(model).__name__
    if model.config.is_encoder_decoder:
        raise UnsupportedTarget(f"{name} is an encoder-decoder; a target is a decoder alone")
    if not isinstance(getattr(config, "num_hidden_layers", None), int):
        raise UnsupportedTarget(
            f"{name} has no num_hidden_layers in its configuration, so its cache cannot be laid out"
        )
    if getattr(model, "_is_stateful", False):
        raise UnsupportedTarget(
            f"{name} keeps a recurrent state, which cannot be rolled back to an accepted prefix"
        )
    unsupported = sorted(set(layer_kinds(config)) - set(SUPPORTED_LAYERS))
    if unsupported:
        raise UnsupportedTarget(
            f"{name} has layers of kind {', '.join(unsupported)}; only "
            f"{' and '.join(SUPPORTED_LAYERS)} can be rolled back and masked as trees"
        )
    if getattr(model.generation_config, "cache_implementation", None) == "quantized":
        raise UnsupportedTarget(
            f"{name} asks for a quantized cache, whose entries cannot be moved one by one"
        )
    if not accepts(model, cache_keyword(model)):
        raise UnsupportedTarget(
            f"{name} keeps no cache of keys and values, so each round would run the whole text"
        )
    if not accepts(model, "position_ids"):
        raise UnsupportedTarget(
            f"{name} takes no position_ids, so two branches of a tree cannot share a position"
        )
    attention = config._attn_implementation
    if attention not in ATTENTIONS:
        raise UnsupportedTarget(
            f"{name} uses {attention} attention, which takes no tree mask; choices: "
            f"{', '.join(ATTENTIONS)} (runtime.attention, or model.set_attn_implementation)"
        )
    if getattr(config, "attention_type", None) == "block_sparse":
        raise UnsupportedTarget(
            f"{name} attends to blocks of long texts, which takes no tree mask; set "
            "config.attention_type to original_full"
        )
    refuse_quantised_activations(model)
    if model.training:
        raise UnsupportedTarget(
            f"{name} is in training mode, in which dropout makes its distribution random; "
            f"call model.eval()"
        )


def eos_token_ids(model: Any) -> frozenset[int]:
    """Ids that end a text, from the generation config."""
    ids = getattr(model.generation_config, "eos_token_id", None)
    if ids is None:
        return frozenset()
    return frozenset([ids] if isinstance(ids, int) else ids)


def generation_defaults(model: Any) -> dict[str, Any]:
    """The checkpoint's generation settings, by the names of GenerationOptions.

    Temperature and filters are among them if the checkpoint samples by default.
    """
    config = model.generation_config
    names = ["repetition_penalty", "no_repeat_ngram_size", "min_new_tokens", *CONSTRAINTS]
    if getattr(config, "do_sample", None):
        names += ["temperature", "top_p", "min_p", "top_k"]
    found = {name: getattr(config, name, None) for name in names}
    if "top_k" in found:
        found["top_k"] = found["top_k"] or None
        found["temperature"] = 1.0 if found["temperature"] is None else found["temperature"]
    return {name: _frozen(value) for name, value in found.items() if value not in (None, [])}


def _frozen(value: Any) -> Any:
    """Lists, nested ones too, as tuples."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


@contextmanager
def refused_if_it_raises(
    name: str, how: str = "explicit 4-D mask, positions and a cache of ours"
) -> Iterator[None]:
    """Turn what a model raises in its first forwards into the reason of an UnsupportedTarget.

    Errors of ours and a lack of memory pass through.
    """
    try:
        yield
    except (DraftwoodError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise UnsupportedTarget(
            f"{name} cannot score a tree ({how}): {f'{type(error).__name__}: {error}'.rstrip(': ')}"
        ) from error
