"""config.json of a DFlash checkpoint, in one form for every published layout. Imports no torch.

z-lab's layout has a `dflash_config` inside a Qwen3 config, and keys moved between the two over
time. speculators nests the decoder under `transformer_layer_config` and counts tapped layers from
1. transformers' own assistants are flat, attend in both directions inside a block, and count a
sliding window without the token itself.
"""

from collections.abc import Mapping
from typing import Any, Self

from attrs import frozen

from draftwood.core.errors import CheckpointError
from draftwood.plugins.drafters.common.config import (
    DECODER_KEYS,
    ConfigReader,
    DrafterConfig,
    decoder_fields,
)

FULL, SLIDING = "full_attention", "sliding_attention"

CAUSAL = ("is_causal", "causal_head", "causal")
"""Names of one flag: z-lab's, JetSpec's (arXiv 2606.18394), and that of vLLM's ports."""

ANCHOR_PREDICTS = (
    "num_anchors",
    "markov_rank",
    "markov_head_type",
    "enable_confidence_head",
    "confidence_head_with_markov",
)
"""Keys of DeepSpec's layout, whose anchor slot predicts a token: read as DFlash, every prediction
would be one position late."""


KEYS = frozenset(
    {
        *("block_size", "mask_token_id", "target_layer_ids", "num_target_layers", "layer_types"),
        *("sliding_window", "use_sliding_window", "sample_from_anchor", "projector_type"),
        *("final_logit_softcapping", "output_multiplier", "input_embedding_scale"),
        *("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"),
        *CAUSAL,
        *DECODER_KEYS,
    }
)
"""The keys that this reader reads at every level of every layout."""

SPECULATORS_KEYS = KEYS - {"target_layer_ids"} | {
    *("transformer_layer_config", "speculators_model_type", "aux_hidden_state_layer_ids"),
    "sliding_window_non_causal",
}
NEUTRAL = {
    "norm_before_residual": False,
    "norm_before_fc": False,
    "fc_norm": False,
    "norm_output": False,
    "attention_mode": "gqa",
}
"""EAGLE-3's flags, which a DFlash drafter may only have off, and SpecForge's kind of attention."""

DECODERS = ("qwen3", "dflash")

JETSPEC_PLUS_PLUS = (
    "JetSpec++ (a head with an adapter) is not supported: it computes something else without "
    "the adapter and the copy of the target's last layers"
)


@frozen(kw_only=True)
class DFlashConfig(DrafterConfig):
    """Config of a DFlash drafter.

    Attributes:
        block_size: Slots of one forward pass, the anchor included.
        target_layer_ids: 0-based target layers whose outputs are read, in the order in which `fc`
            concatenates them.
        num_target_layers: Layers of the target; None where the checkpoint does not say.
        causal: Per layer, whether a slot attends only to slots before it.
        windows: Per layer, a query attends to keys fewer than this many positions away; None for
            no limit.
        final_logit_softcapping: Bound of the logits; None for none.
        conv_kernel_size: 0 in the first generation; so are `selector_rank` and `selector_top_k`.
        selector_top_k: Candidates per position that the selector scores.
    """

    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int | None = None
    causal: tuple[bool, ...]
    windows: tuple[int | None, ...]
    final_logit_softcapping: float | None = None
    output_multiplier: float = 1.0
    input_embedding_scale: float = 1.0
    conv_kernel_size: int = 0
    conv_group_size: int = 1
    selector_rank: int = 0
    selector_top_k: int = 0

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any], source: str = "config.json") -> Self:
        refuse_other_heads(data, source)
        _refuse_unread(data, source)
        if "transformer_layer_config" in data:
            data, layout = _from_speculators(data, source), "speculators"
        elif is_assistant(data):
            data, layout = _from_transformers(data, source), "transformers"
        else:
            layout = "zlab"
        # `dflash_config` has priority over the top level.
        return cls(**_fields(ConfigReader([data.get("dflash_config") or {}, data], source), layout))


def is_assistant(data: Mapping[str, Any]) -> bool:
    """Whether this is one of transformers' own assistant models (`muse_glimmer_assistant`)."""
    return str(data.get("model_type", "")).endswith("_assistant")


def refuse_other_heads(data: Mapping[str, Any], source: str) -> None:
    """Refuse heads whose keys resemble DFlash's and that compute something else.

    Raises:
        CheckpointError: DeepSpec's DSpark (arXiv 2607.05147) or DFlash, SpecForge's DSpark, or
            JetSpec++ (arXiv 2610.19792).
    """
    reader = ConfigReader([data.get("dflash_config") or {}, data], source)
    for key in ANCHOR_PREDICTS:
        if reader.get(key) is not None:
            raise reader.error(
                key,
                "DeepSpec's layout (DSpark and its DFlash) is not supported: its anchor slot "
                "predicts a token, so every draft would be read one position late",
            )
    projector = str(reader.get("projector_type", "dflash"))
    if projector != "dflash":
        raise reader.error(
            "projector_type", f"{projector!r} (SpecForge) is not supported; choices: dflash"
        )
    architectures = [str(name) for name in data.get("architectures") or ()]
    if any("DSpark" in name for name in architectures):
        raise reader.error("architectures", f"{architectures[0]} (DSpark) is not supported")
    for level in reader.levels:
        for key in level:
            if "adapter" in key:
                raise reader.error(key, JETSPEC_PLUS_PLUS)


def _refuse_unread(data: Mapping[str, Any], source: str) -> None:
    """Refuse keys of the published mapping that are not read, and other families of decoders."""
    top = ConfigReader([data], source)
    decoder, where = data, "model_type"
    if "transformer_layer_config" in data:
        decoder, where = data["transformer_layer_config"], "transformer_layer_config.model_type"
        top.refuse_unread(SPECULATORS_KEYS, neutral=NEUTRAL)
        nested = ConfigReader([decoder], source)
        nested.refuse_unread(KEYS - {"target_layer_ids"}, "transformer_layer_config", NEUTRAL)
    else:
        top.refuse_unread(KEYS | {"dflash_config", "dblast_config"}, neutral=NEUTRAL)
        inner = ConfigReader([data.get("dflash_config") or {}], source)
        inner.refuse_unread(KEYS, "dflash_config", NEUTRAL)
    kind = decoder.get("model_type")
    if kind is not None and kind not in DECODERS and not is_assistant(data):
        raise top.error(where, f"{kind!r} is not one of {', '.join(DECODERS)}")


def _fields(reader: ConfigReader, layout: str) -> dict[str, Any]:
    decoder = decoder_fields(
        reader, layout, default_vocab_size=0 if layout == "transformers" else None
    )
    causal, windows = _attention(reader, decoder["num_layers"])
    if reader.get("sample_from_anchor", False):
        raise reader.error(
            "sample_from_anchor", "true is not supported: slot 0 must not predict a token"
        )
    hidden, group = decoder["hidden_size"], reader.integer("conv_group_size", 1, least=1)
    if hidden % group:
        raise reader.error("conv_group_size", f"{group} does not divide hidden_size {hidden}")
    return {
        **decoder,
        "block_size": reader.integer("block_size", least=2),
        "mask_token_id": reader.integer("mask_token_id"),
        "target_layer_ids": _target_layers(reader),
        "num_target_layers": reader.optional_integer("num_target_layers"),
        "causal": causal,
        "windows": windows,
        "final_logit_softcapping": reader.number("final_logit_softcapping", 0.0) or None,
        "output_multiplier": reader.number("output_multiplier", 1.0),
        "input_embedding_scale": reader.number("input_embedding_scale", 1.0),
        "conv_kernel_size": reader.integer("conv_kernel_size", 0),
        "conv_group_size": group,
        "selector_rank": reader.integer("selector_rank", 0),
        "selector_top_k": reader.integer("selector_top_k", 0),
    }


def _target_layers(reader: ConfigReader) -> tuple[int, ...]:
    """Never guessed: with a wrong layer weights load, and only acceptance is poor."""
    layers = reader.integers("target_layer_ids", "target layers")
    depth = reader.optional_integer("num_target_layers")
    if depth is not None and max(layers) >= depth:
        raise reader.error(
            "target_layer_ids", f"layer {max(layers)} of a target with layers 0 to {depth - 1}"
        )
    return layers


def _attention(
    reader: ConfigReader, layers: int
) -> tuple[tuple[bool, ...], tuple[int | None, ...]]:
    """Per layer: whether it is causal inside the block, and its window."""
    types = reader.get("layer_types", [FULL] * layers)
    if reader.flag("use_sliding_window") and reader.get("layer_types") is None:
        raise reader.error("layer_types", "missing, though use_sliding_window is true")
    if len(types) != layers or not set(types) <= {FULL, SLIDING}:
        raise reader.error("layer_types", f"{layers} of {FULL!r} or {SLIDING!r} are expected")
    window = reader.optional_integer("sliding_window")
    if SLIDING in types and window is None:
        raise reader.error("sliding_window", "missing, though layer_types has sliding layers")
    flag = _causal_flag(reader)
    causal = tuple(kind == SLIDING if flag is None else flag for kind in types)
    return causal, tuple(window if kind == SLIDING else None for kind in types)


def _causal_flag(reader: ConfigReader) -> bool | None:
    """The flag under any of its names, at any level; None where there is none."""
    flags = []
    for level in reader.levels:
        one_level = ConfigReader([level], reader.source)
        flags += [(key, one_level.flag(key)) for key in CAUSAL if one_level.get(key) is not None]
    for key, value in flags[1:]:
        first, expected = flags[0]
        if value != expected:
            raise reader.error(
                key, f"{str(value).lower()} disagrees with {first}: {str(expected).lower()}"
            )
    return flags[0][1] if flags else None


def _from_speculators(data: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The speculators layout in z-lab's keys: its layer ids index `hidden_states`."""
    reader = ConfigReader([data], source)
    kind = data.get("speculators_model_type", "dflash")
    if not str(kind).startswith("dflash"):
        raise reader.error("speculators_model_type", f"{kind!r} is not a DFlash drafter")
    ids = reader.integers("aux_hidden_state_layer_ids", "hidden_states indices", least=1)
    flat = {**data["transformer_layer_config"], **data}
    flat["target_layer_ids"] = [index - 1 for index in ids]
    if reader.flag("sliding_window_non_causal", kind == "dflash2"):
        flag = _causal_flag(ConfigReader([flat], source))
        if flag:
            raise reader.error("sliding_window_non_causal", "true disagrees with a causal head")
        flat["is_causal"] = False
    return flat


def _from_transformers(data: Mapping[str, Any], source: str) -> dict[str, Any]:
    """transformers' layout in z-lab's keys.

    Blocks attend in both directions, and a window does not count the token itself. These
    assistants use the target's head, so there is no vocabulary size.
    """
    if _causal_flag(ConfigReader([data], source)):
        raise CheckpointError(f"{source}: this layout has no causal heads, and this one is causal")
    layers = data.get("num_hidden_layers")
    window = ConfigReader([data], source).optional_integer("sliding_window")
    return {
        "layer_types": [SLIDING] * layers if isinstance(layers, int) else None,
        "rms_norm_eps": 1e-5,
        **({} if (data.get("rope_parameters") or {}).get("rope_theta") else {"rope_theta": 5e5}),
        **data,
        "is_causal": False,
        "sliding_window": None if window is None else window + 1,
    }
