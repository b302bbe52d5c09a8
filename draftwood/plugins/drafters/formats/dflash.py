"""Writes config.json of a DFlash drafter in each published layout.

z-lab's and speculators' tensors have the same names. z-lab and transformers name a target layer by
its own index, speculators by the index of its output in `hidden_states`, which is one more.
"""

from collections.abc import Mapping
from typing import Any

from draftwood.core.errors import CheckpointError
from draftwood.plugins.drafters.dflash.config import CAUSAL, FULL, SLIDING, DFlashConfig

Config = Mapping[str, Any]

SECOND_GENERATION = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
"""Keys of DFlash 2, in z-lab's `dflash_config` and at the top level of speculators'."""

OUTER = ("architectures", "auto_map", "dtype", "transformers_version")
"""Keys about the file, not about the decoder inside it."""

ZLAB_ONLY = {
    "final_logit_softcapping": None,
    "output_multiplier": 1.0,
    "input_embedding_scale": 1.0,
}
"""Keys that only z-lab's layout has, with their neutral values."""

ASSISTANT = "muse_glimmer_assistant"
"""The model type of transformers' own DFlash assistants."""


def decoder(data: Config) -> dict[str, Any]:
    """The keys about the decoder's layers, whatever the layout."""
    inner = data.get("transformer_layer_config")
    if inner is None:
        inner = {**data, **(data.get("dflash_config") or {})}
    outside = {"dflash_config", "block_size", "mask_token_id", "target_layer_ids", "projector_type"}
    outside.update(CAUSAL, OUTER, SECOND_GENERATION, ZLAB_ONLY)
    return {key: value for key, value in inner.items() if key not in outside}


def as_zlab(data: Config, old: DFlashConfig, vocab_size: int) -> dict[str, Any]:
    new = {
        "architectures": ["DFlash2DraftModel" if old.selector_rank else "DFlashDraftModel"],
        **decoder(data),
        **_attention(old),
        "model_type": "qwen3",
        "block_size": old.block_size,
        "dflash_config": {
            "mask_token_id": old.mask_token_id,
            "target_layer_ids": list(old.target_layer_ids),
            **_second_generation(old),
        },
        "dtype": data.get("dtype"),
        "vocab_size": vocab_size,
        "tie_word_embeddings": False,
    }
    if old.causal != tuple(window is not None for window in old.windows):
        # Not what the layers' types say; one flag is for all layers.
        new["is_causal"] = all(old.causal)
    if old.draft_vocab_size not in (0, vocab_size):
        new["draft_vocab_size"] = old.draft_vocab_size
    if old.target_hidden_size != old.hidden_size:
        new["target_hidden_size"] = old.target_hidden_size
    return new


def as_speculators(
    data: Config, old: DFlashConfig, vocab_size: int, target: str | None
) -> dict[str, Any]:
    layers = list(zip(old.causal, old.windows, strict=True))
    lost = _scales(old)
    if any(causal and window is None for causal, window in layers):
        lost.append("a causal head (is_causal with layers of full attention)")
    _refuse("speculators", lost)
    sliding = [causal for causal, window in layers if window is not None]
    wider = old.target_hidden_size != old.hidden_size
    return {
        "architectures": ["DFlash2DraftModel" if old.selector_rank else "DFlashDraftModel"],
        "aux_hidden_state_layer_ids": [layer + 1 for layer in old.target_layer_ids],
        "block_size": old.block_size,
        **_second_generation(old),
        "draft_vocab_size": old.draft_vocab_size or vocab_size,
        "dtype": data.get("dtype"),
        "mask_token_id": old.mask_token_id,
        "sample_from_anchor": False,
        "sliding_window_non_causal": bool(sliding) and not any(sliding),
        **speculators_block(
            "dflash2" if old.selector_rank else "dflash", old.block_size - 1, target
        ),
        "target_hidden_size": old.target_hidden_size if wider else None,
        "tie_word_embeddings": False,
        "transformer_layer_config": {
            **decoder(data),
            **_attention(old),
            "model_type": "qwen3",
            "vocab_size": vocab_size,
        },
    }


def as_transformers(data: Config, old: DFlashConfig) -> dict[str, Any]:
    unsupported = {
        "the convolutions and selector of DFlash 2": old.selector_rank or old.conv_kernel_size,
        "causal layers": any(old.causal),
        "attention_bias": old.attention_bias,
        "a reduced vocabulary": old.draft_vocab_size != old.vocab_size,
        "a target of another width": old.target_hidden_size != old.hidden_size,
    }
    _refuse("transformers", _scales(old) + [name for name, used in unsupported.items() if used])
    keep = ("num_target_layers", "initializer_range", "attention_dropout")
    window = _window(old)
    return {
        "architectures": ["MuseGlimmerAssistantModel"],
        "model_type": ASSISTANT,
        "dtype": data.get("dtype"),
        "hidden_size": old.hidden_size,
        "intermediate_size": old.intermediate_size,
        "num_hidden_layers": old.num_layers,
        "num_attention_heads": old.num_heads,
        "num_key_value_heads": old.num_kv_heads,
        "head_dim": old.head_dim,
        "hidden_act": old.activation,
        "rms_norm_eps": old.rms_norm_eps,
        "rope_parameters": {"rope_theta": old.rope_theta, "rope_type": "default"},
        "max_position_embeddings": old.max_position_embeddings,
        "layer_types": _layer_types(old),
        **({} if window is None else {"sliding_window": window - 1}),
        "block_size": old.block_size,
        "mask_token_id": old.mask_token_id,
        "target_layer_ids": list(old.target_layer_ids),
        **{key: value for key, value in decoder(data).items() if key in keep},
    }


def speculators_block(algorithm: str, tokens: int, target: str | None) -> dict[str, Any]:
    """The keys of every speculators config about its use."""
    return {
        "speculators_config": {
            "algorithm": algorithm,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": tokens}],
            "verifier": {"architectures": [], "name_or_path": target},
        },
        "speculators_model_type": algorithm,
    }


def _second_generation(old: DFlashConfig) -> dict[str, Any]:
    return {key: getattr(old, key) for key in SECOND_GENERATION} if old.selector_rank else {}


def _layer_types(old: DFlashConfig) -> list[str]:
    return [FULL if window is None else SLIDING for window in old.windows]


def _window(old: DFlashConfig) -> int | None:
    return next((window for window in old.windows if window is not None), None)


def _attention(old: DFlashConfig) -> dict[str, Any]:
    """Keys whose defaults in transformers' layout differ from those of the other layouts."""
    if old.layout != "transformers":
        return {}
    return {
        "layer_types": _layer_types(old),
        "sliding_window": _window(old),
        "rms_norm_eps": old.rms_norm_eps,
    }


def _scales(old: DFlashConfig) -> list[str]:
    return [key for key, neutral in ZLAB_ONLY.items() if getattr(old, key) not in (neutral, None)]


def _refuse(layout: str, lost: list[str]) -> None:
    if lost:
        raise CheckpointError(f"the {layout} layout cannot represent: {', '.join(lost)}")
