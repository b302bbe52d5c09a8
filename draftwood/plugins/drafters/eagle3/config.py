"""config.json of an EAGLE-3 checkpoint, in one form for both layouts. Imports no torch.

speculators nests the decoder under `transformer_layer_config` and has flags for where norms go
(EAGLE 3.1); the original layout is a plain Llama config with `draft_vocab_size`.
"""

from collections.abc import Mapping
from typing import Any, Self

from attrs import field, frozen

from draftwood.plugins.drafters.common.config import (
    DECODER_KEYS,
    ConfigReader,
    DrafterConfig,
    decoder_fields,
)

DECODERS = ("llama", "qwen3")
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
AUX_LAYERS = "eagle_aux_hidden_state_layer_ids"
KEYS = DECODER_KEYS.union(FLAGS, ("mlp_bias", "layer_types", AUX_LAYERS))
"""The keys that this reader reads at every level."""

NEUTRAL = {
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
    "next_layer_regular": True,
    "parallel_draft_step": 1,
}
"""Flags of an `eagle_config`, as TensorRT Model Optimizer and SpecForge write it."""

TAPS = 3
"""Tapped layers of a checkpoint that does not name them, as in EAGLE-3's own release."""


@frozen(kw_only=True)
class Eagle3Config(DrafterConfig):
    """Config of an EAGLE-3 drafter.

    Attributes:
        target_layer_ids: 0-based target layers whose outputs are read, in the order in which `fc`
            concatenates them; None if the checkpoint does not say.
        head_norms: Queries and keys are normed per head (Qwen3).
        norm_before_residual: The first layer's residual is the normed feature, not the raw one.
        norm_before_fc: One norm over all tapped states side by side.
        fc_norm: One norm over each tapped state.
        norm_output: The feature of the next step is the final-normed state.
    """

    target_layer_ids: tuple[int, ...] | None
    mlp_bias: bool = False
    head_norms: bool = False
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    layout: str = field(default="eagle", eq=False)

    @property
    def taps(self) -> int:
        """Number of layers that `fc` reads."""
        return len(self.target_layer_ids) if self.target_layer_ids else TAPS

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any], source: str = "config.json") -> Self:
        nested = data.get("transformer_layer_config")
        reader = ConfigReader([nested or {}, data], source)
        _refuse_unread(data, source)
        kind = data.get("speculators_model_type", "eagle3")
        if kind != "eagle3":
            raise reader.error("speculators_model_type", f"{kind!r} is not an EAGLE-3 drafter")
        if nested is None and data.get("draft_vocab_size") is None:
            raise reader.error(
                "draft_vocab_size",
                "missing; it distinguishes an EAGLE-3 drafter from a language model (speculators "
                "nests the decoder under transformer_layer_config)",
            )
        return cls(**_fields(reader, "eagle" if nested is None else "speculators"))


def _refuse_unread(data: Mapping[str, Any], source: str) -> None:
    """Refuse keys of the published mapping that are not read."""
    sections = ("transformer_layer_config", "eagle_config")
    top = ConfigReader([data], source)
    # Without sliding layers, which are refused, a window is of no effect.
    ignored = {"sliding_window", "num_target_layers", "num_aux_hidden_states", "target_model_type"}
    top.refuse_unread(KEYS | ignored | {*sections, "speculators_model_type"})
    nested = ConfigReader([data.get("transformer_layer_config") or {}], source)
    nested.refuse_unread(KEYS | ignored, "transformer_layer_config")
    section = ConfigReader([data.get("eagle_config") or {}], source)
    if section.get(AUX_LAYERS) is not None:
        raise section.error(
            f"eagle_config.{AUX_LAYERS}",
            "engines disagree whether these are layers or indices of hidden_states, one more; "
            "remove the key and set drafter.taps",
        )
    section.refuse_unread(set(), "eagle_config", NEUTRAL)


def _fields(reader: ConfigReader, layout: str) -> dict[str, Any]:
    decoder = decoder_fields(reader, layout, scaled_rope=True)
    kind = reader.choice("model_type", "llama", DECODERS)
    if set(reader.get("layer_types") or ()) - {"full_attention"}:
        raise reader.error("layer_types", "only full_attention; sliding layers are not supported")
    layers = decoder["num_layers"]
    if layout == "eagle" and layers != 1:
        raise reader.error("num_hidden_layers", f"{layers}: this layout has one layer, `midlayer`")
    flags = {name: reader.flag(name) for name in FLAGS}
    if flags["norm_before_fc"] and flags["fc_norm"]:
        raise reader.error("fc_norm", "true with norm_before_fc: only one of the two can be set")
    return {
        **decoder,
        **flags,
        "target_layer_ids": _target_layers(reader),
        "mlp_bias": reader.flag("mlp_bias"),
        "head_norms": kind == "qwen3",
    }


def _target_layers(reader: ConfigReader) -> tuple[int, ...] | None:
    """The checkpoint's ids index `hidden_states`, whose entry i is the output of layer i - 1."""
    if reader.get(AUX_LAYERS) is None:
        return None
    return tuple(
        index - 1 for index in reader.integers(AUX_LAYERS, "hidden_states indices", least=1)
    )
