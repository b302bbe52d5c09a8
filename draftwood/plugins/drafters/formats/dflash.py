"""config.json of a DFlash drafter in each published layout.

Tensors have the same names in z-lab's and speculators' layout. Target layers are counted by z-lab
and transformers by their own index, by speculators by the index of their output in
`hidden_states`: one more.
"""

from collections.abc import Mapping
from typing import Any

from draftwood.core.errors import CheckpointError
from draftwood.plugins.drafters.dflash.config import FULL, SLIDING, DFlashConfig

Config = Mapping[str, Any]

CONVOLUTIONS = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
"""Keys of the second generation: z-lab's are in `dflash_config`, speculators' at the top."""

OWN = ("mask_token_id", "target_layer_ids", *CONVOLUTIONS)
"""Keys of z-lab's `dflash_config`."""

OUTER = ("architectures", "auto_map", "dtype", "transformers_version")
"""Keys of a config that are about the file, not about the decoder inside it."""

UNSPOKEN = {"final_logit_softcapping": None, "output_multiplier": 1.0, "input_embedding_scale": 1.0}
"""What only z-lab has a key for, with the value that says nothing."""

ASSISTANT = "muse_glimmer_assistant"
"""The model type of transformers' own DFlash assistants."""


def decoder(data: Config) -> dict[str, Any]:
    """What a config says of the layers alone, whatever its layout."""
    if "transformer_layer_config" in data:
        return dict(data["transformer_layer_config"])
    inner = {**data, **(data.get("dflash_config") or {})}
    outside = {*OUTER, *OWN, *UNSPOKEN, "dflash_config", "block_size", "is_causal"}
    return {key: value for key, value in inner.items() if key not in outside}


def as_zlab(data: Config, old: DFlashConfig, vocab_size: int) -> dict[str, Any]:
    own = {key: getattr(old, key) for key in CONVOLUTIONS} if old.selector_rank else {}
    inner = decoder(data) | _attention(old)
    new = {
        "architectures": ["DFlash2DraftModel" if own else "DFlashDraftModel"],
        **inner,
        "model_type": "qwen3",
        "block_size": old.block_size,
        "dflash_config": {
            "mask_token_id": old.mask_token_id,
            "target_layer_ids": list(old.target_layer_ids),
            **own,
        },
        "dtype": data.get("dtype"),
        "vocab_size": vocab_size,
        "tie_word_embeddings": False,
    }
    if old.layout == "transformers" or data.get("sliding_window_non_causal"):
        new["is_causal"] = False
    if old.draft_vocab_size not in (0, vocab_size):
        new["draft_vocab_size"] = old.draft_vocab_size
    if old.target_hidden_size != old.hidden_size:
        new["target_hidden_size"] = old.target_hidden_size
    return new


def as_speculators(
    data: Config, old: DFlashConfig, vocab_size: int, target: str | None
) -> dict[str, Any]:
    full = [window is None for window in old.windows]
    unspoken = _scales(old)
    if any(causal and all_ for causal, all_ in zip(old.causal, full, strict=True)):
        unspoken.append("is_causal with layers of full attention")
    _refuse("speculators", unspoken)
    second = bool(old.selector_rank)
    sliding = [causal for causal, all_ in zip(old.causal, full, strict=True) if not all_]
    wider = old.target_hidden_size != old.hidden_size
    return {
        "architectures": ["DFlash2DraftModel" if second else "DFlashDraftModel"],
        "aux_hidden_state_layer_ids": [layer + 1 for layer in old.target_layer_ids],
        "block_size": old.block_size,
        **({key: getattr(old, key) for key in CONVOLUTIONS} if second else {}),
        "draft_vocab_size": old.draft_vocab_size or vocab_size,
        "dtype": data.get("dtype"),
        "mask_token_id": old.mask_token_id,
        "sample_from_anchor": False,
        "sliding_window_non_causal": bool(sliding) and not any(sliding),
        **speculators_block("dflash2" if second else "dflash", old.block_size - 1, target),
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
    unspoken = _scales(old)
    if old.selector_rank or old.conv_kernel_size:
        unspoken.append("the convolutions and selector of DFlash 2")
    if any(old.causal):
        unspoken.append("causal layers")
    if old.attention_bias:
        unspoken.append("attention_bias")
    if old.draft_vocab_size != old.vocab_size:
        unspoken.append("a reduced vocabulary")
    if old.target_hidden_size != old.hidden_size:
        unspoken.append("a target of another width")
    _refuse("transformers", unspoken)
    keep = ("num_target_layers", "initializer_range", "attention_dropout")
    window = next((window for window in old.windows if window is not None), None)
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
        "layer_types": [FULL if w is None else SLIDING for w in old.windows],
        **({} if window is None else {"sliding_window": window - 1}),
        "block_size": old.block_size,
        "mask_token_id": old.mask_token_id,
        "target_layer_ids": list(old.target_layer_ids),
        **{key: value for key, value in decoder(data).items() if key in keep},
    }


def speculators_block(algorithm: str, tokens: int, target: str | None) -> dict[str, Any]:
    """What every speculators config says of how it is used."""
    return {
        "speculators_config": {
            "algorithm": algorithm,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": tokens}],
            "verifier": {"architectures": [], "name_or_path": target},
        },
        "speculators_model_type": algorithm,
    }


def _attention(old: DFlashConfig) -> dict[str, Any]:
    """Kinds and window of the layers; a layout that has other defaults must be told."""
    if old.layout != "transformers":
        return {}
    window = next((window for window in old.windows if window is not None), None)
    kinds = [FULL if w is None else SLIDING for w in old.windows]
    return {"layer_types": kinds, "sliding_window": window, "rms_norm_eps": old.rms_norm_eps}


def _scales(old: DFlashConfig) -> list[str]:
    return [key for key, nothing in UNSPOKEN.items() if getattr(old, key) not in (nothing, None)]


def _refuse(layout: str, unspoken: list[str]) -> None:
    if unspoken:
        raise CheckpointError(f"the {layout} layout cannot say: {', '.join(unspoken)}")
