"""What a DFlash checkpoint's config.json says, in one form for every published layout.

Imports no torch: `check` reads it without loading weights. Layouts differ in detail: z-lab's has
`dflash_config` inside a Qwen3 config, and keys moved between the two over time; speculators nests
the decoder under `transformer_layer_config` and counts tapped layers from 1; transformers' own
assistants are flat, see their block from both sides, and count a window inclusively.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import field, frozen

from draftwood.core.errors import CheckpointError
from draftwood.plugins.drafters.common.keys import Keys, read_config

FULL, SLIDING = "full_attention", "sliding_attention"


@frozen(kw_only=True)
class DFlashConfig:
    """One drafter.

    target_layer_ids: 0-based layers of the target whose outputs are read, in the order that `fc`
    concatenates them. num_target_layers, target_hidden_size: the target's, None where the
    checkpoint does not say. block_size: slots of one pass, the anchor included.
    causal: per layer, whether a slot sees only slots before it. windows: per layer, the most
    positions apart that a query and a key may be plus one, None for no limit.
    vocab_size: of the target, 0 where the checkpoint does not say. draft_vocab_size: width of
    the checkpoint's own head where it has one. conv_kernel_size, selector_rank: 0 in the first
    generation. layout: whose names its parameters have.
    """

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    draft_vocab_size: int
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int | None = None
    target_hidden_size: int
    causal: tuple[bool, ...]
    windows: tuple[int | None, ...]
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 4096
    attention_bias: bool = False
    activation: str = "silu"
    final_logit_softcapping: float | None = None
    output_multiplier: float = 1.0
    input_embedding_scale: float = 1.0
    conv_kernel_size: int = 0
    conv_group_size: int = 1
    selector_rank: int = 0
    selector_top_k: int = 0
    layout: str = field(default="zlab", eq=False)
    source: str = field(default="config.json", eq=False)

    @classmethod
    def from_file(cls, path: Path | str) -> "DFlashConfig":
        """Read config.json, or the one in a folder. Raises CheckpointError with file and key."""
        return cls.from_mapping(*read_config(path))

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any], source: str = "config.json") -> "DFlashConfig":
        """The same from parsed JSON; `source` is named in errors."""
        if "transformer_layer_config" in data:
            return _parse(_keys(_from_speculators(data, source), source), "speculators")
        if is_assistant(data):
            return _parse(_keys(_from_transformers(data, source), source), "transformers")
        return _parse(_keys(data, source), "zlab")


def _keys(data: Mapping[str, Any], source: str) -> Keys:
    """`dflash_config` goes before the top level."""
    return Keys([data.get("dflash_config") or {}, data], source)


def is_assistant(data: Mapping[str, Any]) -> bool:
    """Whether this is an assistant model of transformers' own (`muse_glimmer_assistant`)."""
    return str(data.get("model_type", "")).endswith("_assistant")


def _parse(keys: Keys, layout: str) -> DFlashConfig:
    hidden = keys.integer("hidden_size", least=1)
    heads = keys.integer("num_attention_heads", least=1)
    layers = keys.integer("num_hidden_layers", least=1)
    vocab = keys.integer("vocab_size", 0 if layout == "transformers" else None)
    causal, windows = _attention(keys, layers)
    if keys.get("sample_from_anchor", False):
        raise keys.fail("sample_from_anchor", "true is not supported: slot 0 must predict nothing")
    cap = keys.number("final_logit_softcapping", 0.0)
    group = keys.integer("conv_group_size", 1, least=1)
    if hidden % group:
        raise keys.fail("conv_group_size", f"{group} does not divide hidden_size {hidden}")
    return DFlashConfig(
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=keys.integer("num_key_value_heads", heads, least=1),
        head_dim=keys.integer("head_dim", hidden // heads, least=2),
        intermediate_size=keys.integer("intermediate_size", least=1),
        vocab_size=vocab,
        draft_vocab_size=keys.integer("draft_vocab_size", vocab),
        block_size=keys.integer("block_size", least=2),
        mask_token_id=keys.integer("mask_token_id"),
        target_layer_ids=_taps(keys),
        num_target_layers=keys.get("num_target_layers"),
        target_hidden_size=keys.integer("target_hidden_size", hidden, least=1),
        causal=causal,
        windows=windows,
        rope_theta=keys.rope()[0],
        rms_norm_eps=keys.number("rms_norm_eps", 1e-6),
        max_position_embeddings=keys.integer("max_position_embeddings", 4096, least=1),
        attention_bias=bool(keys.get("attention_bias", False)),
        activation=keys.activation(),
        final_logit_softcapping=cap or None,
        output_multiplier=keys.number("output_multiplier", 1.0),
        input_embedding_scale=keys.number("input_embedding_scale", 1.0),
        conv_kernel_size=keys.integer("conv_kernel_size", 0),
        conv_group_size=group,
        selector_rank=keys.integer("selector_rank", 0),
        selector_top_k=keys.integer("selector_top_k", 0),
        layout=layout,
        source=keys.source,
    )


def _taps(keys: Keys) -> tuple[int, ...]:
    """Never guessed: a wrong layer loads cleanly and only shows as poor acceptance."""
    ids = keys.get("target_layer_ids")
    if not isinstance(ids, list) or not ids:
        raise keys.fail("target_layer_ids", "a list of 0-based target layers is required")
    depth = keys.get("num_target_layers")
    for layer in ids:
        if isinstance(layer, bool) or not isinstance(layer, int) or layer < 0:
            raise keys.fail("target_layer_ids", f"{layer!r} is not a 0-based layer")
        if depth is not None and layer >= depth:
            raise keys.fail(
                "target_layer_ids", f"layer {layer} of a target with layers 0 to {depth - 1}"
            )
    return tuple(ids)


def _attention(keys: Keys, layers: int) -> tuple[tuple[bool, ...], tuple[int | None, ...]]:
    """Per layer: causal inside the block or not, and the window."""
    types = keys.get("layer_types", [FULL] * layers)
    if len(types) != layers or not set(types) <= {FULL, SLIDING}:
        raise keys.fail("layer_types", f"{layers} of {FULL!r} or {SLIDING!r} are expected")
    window = keys.get("sliding_window")
    if SLIDING in types and window is None:
        raise keys.fail("sliding_window", "missing, though layer_types has sliding layers")
    is_causal = keys.get("is_causal")
    causal = tuple(kind == SLIDING if is_causal is None else bool(is_causal) for kind in types)
    return causal, tuple(window if kind == SLIDING else None for kind in types)


def _from_speculators(data: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The speculators layout in z-lab's terms: its ids index hidden_states, ours the layers."""
    kind = data.get("speculators_model_type", "dflash")
    if not str(kind).startswith("dflash"):
        raise CheckpointError(f"{source}: speculators_model_type: {kind!r} is not a DFlash drafter")
    ids = data.get("aux_hidden_state_layer_ids")
    if not isinstance(ids, list) or not ids or not all(isinstance(i, int) and i > 0 for i in ids):
        raise CheckpointError(
            f"{source}: aux_hidden_state_layer_ids: a list of hidden_states indices >= 1 is "
            f"required, got {ids!r}"
        )
    flat = {**data["transformer_layer_config"], **data}
    flat["target_layer_ids"] = [i - 1 for i in ids]
    if data.get("sliding_window_non_causal", kind == "dflash2"):
        flat["is_causal"] = False
    return flat


def _from_transformers(data: Mapping[str, Any], source: str) -> dict[str, Any]:
    """transformers' own layout in z-lab's terms: a block sees itself whole, and a window counts the
    positions apart, not the token itself. It borrows the target's head, and so says no vocabulary.
    """
    layers, window = data.get("num_hidden_layers"), data.get("sliding_window")
    if not isinstance(window, int) and window is not None:
        raise CheckpointError(f"{source}: sliding_window: an integer is expected, got {window!r}")
    return {
        "layer_types": [SLIDING] * layers if isinstance(layers, int) else None,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        **data,
        "is_causal": False,
        "sliding_window": None if window is None else window + 1,
    }
