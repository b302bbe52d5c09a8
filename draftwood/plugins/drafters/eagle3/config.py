"""What an EAGLE-3 checkpoint's config.json says, in one form for both published layouts.

Imports no torch. speculators nests the decoder under `transformer_layer_config` and has flags for
where norms go (EAGLE 3.1); the original layout is a plain Llama config with `draft_vocab_size`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import field, frozen

from draftwood.core.errors import CheckpointError
from draftwood.plugins.drafters.common.keys import Keys, Llama3Scaling, read_config

DECODERS = ("llama", "qwen3")
TAPS = 3
"""Tapped layers of a checkpoint that does not name them: what `fc` was made for."""


@frozen(kw_only=True)
class Eagle3Config:
    """One drafter.

    target_layer_ids: 0-based layers of the target whose outputs are read, in the order that `fc`
    concatenates them; None if the checkpoint does not say. target_hidden_size: width of each.
    vocab_size: of the target; draft_vocab_size: of the drafter's own head.
    head_norms: queries and keys are normed per head (Qwen3). norm_before_residual: the first
    layer's residual is the normed feature, not the raw one. norm_before_fc: one norm over all
    tapped states side by side. fc_norm: one over each. norm_output: the state fed to the next step
    is the final-normed one.
    """

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    draft_vocab_size: int
    target_hidden_size: int
    target_layer_ids: tuple[int, ...] | None
    rope_theta: float = 10000.0
    rope_scaling: Llama3Scaling | None = None
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 4096
    attention_bias: bool = False
    mlp_bias: bool = False
    activation: str = "silu"
    head_norms: bool = False
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    layout: str = "eagle"
    source: str = field(default="config.json", eq=False)

    @property
    def taps(self) -> int:
        """How many layers `fc` reads."""
        return len(self.target_layer_ids) if self.target_layer_ids else TAPS

    @classmethod
    def from_file(cls, path: Path | str) -> "Eagle3Config":
        """Read config.json, or the one in a folder. Raises CheckpointError with file and key."""
        return cls.from_mapping(*read_config(path))

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any], source: str = "config.json") -> "Eagle3Config":
        """The same from parsed JSON; `source` is named in errors."""
        nested = data.get("transformer_layer_config")
        kind = data.get("speculators_model_type", "eagle3")
        if kind != "eagle3":
            raise CheckpointError(
                f"{source}: speculators_model_type: {kind!r} is not an EAGLE-3 drafter"
            )
        if nested is None and data.get("draft_vocab_size") is None:
            raise CheckpointError(
                f"{source}: draft_vocab_size: missing; it is what tells an EAGLE-3 drafter from a "
                "model (speculators nests the decoder under transformer_layer_config)"
            )
        keys = Keys([nested or {}, data], source)
        return _parse(keys, "eagle" if nested is None else "speculators")


def _parse(keys: Keys, layout: str) -> Eagle3Config:
    hidden = keys.integer("hidden_size", least=1)
    heads = keys.integer("num_attention_heads", least=1)
    vocab = keys.integer("vocab_size", least=1)
    decoder = _decoder(keys)
    theta, scaling = keys.rope(scaled=True)
    layers = keys.integer("num_hidden_layers", least=1)
    if layout == "eagle" and layers != 1:
        raise keys.fail("num_hidden_layers", f"{layers}: this layout has one layer, `midlayer`")
    if keys.flag("norm_before_fc") and keys.flag("fc_norm"):
        raise keys.fail("fc_norm", "true beside norm_before_fc: states are normed one way or other")
    return Eagle3Config(
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=keys.integer("num_key_value_heads", heads, least=1),
        head_dim=keys.integer("head_dim", hidden // heads, least=2),
        intermediate_size=keys.integer("intermediate_size", least=1),
        vocab_size=vocab,
        draft_vocab_size=keys.integer("draft_vocab_size", vocab, least=1),
        target_hidden_size=keys.integer("target_hidden_size", hidden, least=1),
        target_layer_ids=_taps(keys),
        rope_theta=theta,
        rope_scaling=scaling,
        rms_norm_eps=keys.number("rms_norm_eps", 1e-6),
        max_position_embeddings=keys.integer("max_position_embeddings", 4096, least=1),
        attention_bias=keys.flag("attention_bias"),
        mlp_bias=keys.flag("mlp_bias"),
        activation=keys.activation(),
        head_norms=decoder == "qwen3",
        norm_before_residual=keys.flag("norm_before_residual"),
        norm_before_fc=keys.flag("norm_before_fc"),
        fc_norm=keys.flag("fc_norm"),
        norm_output=keys.flag("norm_output"),
        layout=layout,
        source=keys.source,
    )


def _decoder(keys: Keys) -> str:
    """Which layers it is made of; all of them must see all positions."""
    decoder: str = keys.get("model_type", "llama")
    if decoder not in DECODERS:
        raise keys.fail("model_type", f"{decoder!r} is not one of {', '.join(DECODERS)}")
    if "sliding_attention" in (keys.get("layer_types") or ()):
        raise keys.fail("layer_types", "sliding layers are not supported in an EAGLE-3 drafter")
    return decoder


def _taps(keys: Keys) -> tuple[int, ...] | None:
    """The checkpoint's ids index hidden_states, whose entry i is the output of layer i - 1."""
    ids = keys.get("eagle_aux_hidden_state_layer_ids")
    if ids is None:
        return None
    good = isinstance(ids, list) and all(type(i) is int and i > 0 for i in ids)
    if not good or not ids:
        raise keys.fail(
            "eagle_aux_hidden_state_layer_ids",
            f"a list of hidden_states indices >= 1 is expected, got {ids!r}",
        )
    return tuple(i - 1 for i in ids)
