"""Reads config.json of drafter checkpoints; errors name the file and the key. Imports no torch."""

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from attrs import field, frozen

from draftwood.core import checkpoints
from draftwood.core.errors import CheckpointError

ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh")

MAX_INTEGER = 2**31 - 1
"""Upper bound of every size: a larger one is a damaged file."""

MAX_COUNTS = dict.fromkeys(
    ("num_hidden_layers", "block_size", "num_branches", "branches", "num_target_layers"), 4096
)
"""Upper bounds of what is counted out one by one."""


DECODER_KEYS = frozenset(
    {
        *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
        *("head_dim", "intermediate_size", "vocab_size", "draft_vocab_size"),
        *("target_hidden_size", "rope_theta", "rope_parameters", "rope_scaling", "rms_norm_eps"),
        *("max_position_embeddings", "attention_bias", "hidden_act"),
    }
)
"""The keys that `decoder_fields` reads."""

HARMLESS_KEYS = frozenset(
    {
        # about the file and the tools that wrote it
        *(
            "architectures",
            "auto_map",
            "model_type",
            "_name_or_path",
            "name_or_path",
            "_commit_hash",
        ),
        *("transformers_version", "speculators_version", "speculators_config", "tokenizer_class"),
        # dtypes and caches
        *(
            "dtype",
            "torch_dtype",
            "use_cache",
            "cache_implementation",
            "return_dict",
            "torchscript",
        ),
        *("attn_implementation", "_attn_implementation", "pretraining_tp", "use_bfloat16"),
        *("output_attentions", "output_hidden_states", "chunk_size_feed_forward"),
        # token ids
        *("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id"),
        *("cls_token_id", "decoder_start_token_id"),
        # training
        *("initializer_range", "attention_dropout", "hidden_dropout", "gradient_checkpointing"),
        *("embed_requires_grad", "ttt_length", "ttt_steps", "max_anchors", "loss_decay_gamma"),
        # labels of classifiers
        *("id2label", "label2id", "problem_type", "finetuning_task"),
        # Only says which tensors a file repeats: a head that the file lacks is the target's.
        "tie_word_embeddings",
        # All sections of such a rotation turn by the same position, as all are of text.
        *("mrope_section", "mrope_interleaved"),
        # `layer_types` decides.
        "max_window_layers",
    }
)
"""Keys that do not change what a drafter computes."""

NEUTRAL_VALUES: Mapping[str, Any] = {
    "partial_rotary_factor": 1.0,
    "rope_is_neox_style": True,
    "rope_interleaved": False,
    "residual_multiplier": 1.0,
    "embedding_multiplier": 1.0,
    "logits_scaling": 1.0,
    "final_logit_softcapping": 0.0,
    "output_multiplier": 1.0,
    "input_embedding_scale": 1.0,
    "mlp_bias": False,
    "use_sliding_window": False,
    "is_encoder_decoder": False,
    "add_cross_attention": False,
    "tie_encoder_decoder": False,
    "attention_k_eq_v": False,
    "enable_moe_block": False,
    "pruned_heads": {},
}
"""Keys that change the computation unless they have this value, where a reader reads them not."""

ROPE_KEYS = frozenset({"rope_type", "type", "rope_theta"})
LLAMA3_KEYS = frozenset(
    {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}
)


@contextmanager
def readable(source: str) -> Iterator[None]:
    """Turn what a value of the wrong kind raises inside into a CheckpointError.

    Keys with typed access name themselves; this is for all others.

    Args:
        source: The file, for the message.
    """
    try:
        yield
    except (TypeError, AttributeError, ArithmeticError, ValueError, LookupError) as error:
        cause = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        raise CheckpointError(f"{source}: a value is of the wrong kind ({cause})") from error


def read_config(path: Path | str) -> tuple[dict[str, Any], str]:
    """Parse a config.json, or the one in a folder.

    Returns:
        The parsed object, and the path of the file for error messages.

    Raises:
        CheckpointError: The file cannot be read or holds no JSON object.
    """
    path = Path(path)
    if path.is_dir():
        path = path / "config.json"
    return checkpoints.read_config(path), str(path)


@frozen
class Llama3Scaling:
    """Rotary frequency scaling of Llama 3.1.

    Attributes:
        factor: Divides frequencies that turn at most `low` times in the original context.
        low: See `factor`. Between `low` and `high` turns the division fades out.
        high: Frequencies that turn at least this often are unchanged.
        original: Context length, in tokens, before scaling.
    """

    factor: float
    low: float
    high: float
    original: int


class ConfigReader:
    """Typed access to the keys of a config.

    Args:
        levels: Mappings to search, in order. A key whose value is null counts as absent.
        source: The file's name, which errors begin with.
    """

    def __init__(self, levels: Sequence[Mapping[str, Any]], source: str) -> None:
        self.levels, self.source = levels, source

    def error(self, key: str, message: str) -> CheckpointError:
        """An error that names the file and this key, to be raised."""
        return CheckpointError(f"{self.source}: {key}: {message}")

    def get(self, key: str, default: Any = None) -> Any:
        """The value in the first level that has the key."""
        for level in self.levels:
            if level.get(key) is not None:
                return level[key]
        return default

    def refuse_unread(
        self, read: Set[str], where: str = "", neutral: Mapping[str, Any] | None = None
    ) -> None:
        """Refuse keys that may change the computation and are not read; null counts as absent.

        Args:
            read: The keys that are read.
            where: The object that holds these keys, for errors.
            neutral: Keys that are not read and do nothing at this value, beside the common ones.

        Raises:
            CheckpointError: Names the first such key.
        """
        accepted = {**NEUTRAL_VALUES, **(neutral or {})}
        for level in self.levels:
            for key, value in level.items():
                if value is None or key in read or key in HARMLESS_KEYS:
                    continue
                name = f"{where}.{key}" if where else key
                if key not in accepted:
                    raise self.error(
                        name,
                        "this key is not known and may change what the drafter computes; remove "
                        "it from config.json if it does not",
                    )
                if value != accepted[key]:
                    raise self.error(name, f"{value!r} is not supported; only {accepted[key]!r} is")

    def integer(self, key: str, default: int | None = None, least: int = 0) -> int:
        """An integer of at least `least`; required if there is no default."""
        value = self.get(key, default)
        if value is None:
            raise self.error(key, f"missing; an integer >= {least} is required")
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.error(key, f"an integer >= {least} is expected, got {value!r}")
        if value > (most := MAX_COUNTS.get(key, MAX_INTEGER)):
            raise self.error(key, f"{value:.6g} is too large; at most {most}")
        return value

    def optional_integer(self, key: str, least: int = 0) -> int | None:
        """The same, or None where the key is absent."""
        return None if self.get(key) is None else self.integer(key, least=least)

    def number(self, key: str, default: float) -> float:
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(key, f"a number is expected, got {value!r}")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, f"true or false is expected, got {value!r}")
        return value

    def choice(self, key: str, default: str, choices: Sequence[str]) -> str:
        value: str = self.get(key, default)
        if value not in choices:
            raise self.error(key, f"{value!r} is not one of {', '.join(choices)}")
        return value

    def integers(self, key: str, meaning: str, least: int = 0) -> tuple[int, ...]:
        """A required list of one or more integers; `meaning` says in errors what they are."""
        values = self.get(key)
        valid = isinstance(values, list) and all(type(v) is int and v >= least for v in values)
        if not valid or not values:
            raise self.error(key, f"a list of {meaning} >= {least} is expected, got {values!r}")
        return tuple(values)

    def rope(self, scaled: bool = False) -> tuple[float, Llama3Scaling | None]:
        """Theta and scaling, from `rope_parameters`, `rope_scaling` or the top level.

        Args:
            scaled: Whether the drafter supports Llama 3.1's scaling. No other is supported.
        """
        rope = self.get("rope_parameters") or self.get("rope_scaling") or {}
        self._check_rope_agrees(rope)
        kind = rope.get("rope_type", rope.get("type", "default"))
        supported = ("default", "llama3") if scaled else ("default",)
        if kind not in supported:
            raise self.error(
                "rope_parameters",
                f"rope_type {kind!r} is not supported; choices: {', '.join(supported)}",
            )
        read = ROPE_KEYS | LLAMA3_KEYS if kind == "llama3" else ROPE_KEYS
        neutral = {"factor": 1.0, "attention_factor": 1.0}
        ConfigReader([rope], self.source).refuse_unread(read, "rope_parameters", neutral)
        theta = rope.get("rope_theta", self.get("rope_theta"))
        if theta is None:
            raise self.error("rope_theta", "missing, at the top level and in rope_parameters")
        if kind == "default":
            return float(theta), None
        inner = ConfigReader([rope], self.source)
        return float(theta), Llama3Scaling(
            inner.number("factor", 8.0),
            inner.number("low_freq_factor", 1.0),
            inner.number("high_freq_factor", 4.0),
            inner.integer("original_max_position_embeddings", least=1),
        )

    def _check_rope_agrees(self, rope: Mapping[str, Any]) -> None:
        """Refuse a second statement about the rotation that is not read and disagrees."""
        theta, inner = self.get("rope_theta"), rope.get("rope_theta")
        if None not in (theta, inner) and theta != inner:
            raise self.error("rope_theta", f"{theta} disagrees with {inner} in rope_parameters")
        other = self.get("rope_scaling") or {}
        kinds = [each.get("rope_type", each.get("type", "default")) for each in (rope, other)]
        scale = [{k: v for k, v in each.items() if k not in ROPE_KEYS} for each in (rope, other)]
        if other and (kinds[0] != kinds[1] or scale[0] != scale[1]):
            raise self.error("rope_scaling", "disagrees with rope_parameters")


@frozen(kw_only=True)
class DrafterConfig:
    """The decoder inside a drafter checkpoint, in one form for every published layout.

    Attributes:
        vocab_size: Of the target; 0 where the checkpoint does not say.
        draft_vocab_size: Rows of the drafter's own head, where it has one.
        target_hidden_size: Width of each tapped state.
        rope_scaling: None for unscaled frequencies.
        layout: The published layout that parameter names follow.
        source: The config's path, for error messages.
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
    rope_theta: float = 10000.0
    rope_scaling: Llama3Scaling | None = None
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 4096
    attention_bias: bool = False
    activation: str = "silu"
    layout: str = field(default="zlab", eq=False)
    source: str = field(default="config.json", eq=False)

    @classmethod
    def from_file(cls, path: Path | str) -> Self:
        """Read config.json, or the one in a folder.

        Raises:
            CheckpointError: Names the file and the key that is missing or has a wrong value.
        """
        data, source = read_config(path)
        with readable(source):
            return cls.from_mapping(data, source)

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any], source: str = "config.json") -> Self:
        """The same from parsed JSON; `source` is named in errors."""
        raise NotImplementedError


def decoder_fields(
    reader: ConfigReader,
    layout: str,
    *,
    default_vocab_size: int | None = None,
    scaled_rope: bool = False,
) -> dict[str, Any]:
    """The fields of `DrafterConfig`, read under the keys that every layout shares."""
    hidden = reader.integer("hidden_size", least=1)
    heads = reader.integer("num_attention_heads", least=1)
    vocab_size = reader.integer("vocab_size", default_vocab_size)
    rope_theta, rope_scaling = reader.rope(scaled_rope)
    return {
        "hidden_size": hidden,
        "num_layers": reader.integer("num_hidden_layers", least=1),
        "num_heads": heads,
        "num_kv_heads": reader.integer("num_key_value_heads", heads, least=1),
        "head_dim": reader.integer("head_dim", hidden // heads, least=2),
        "intermediate_size": reader.integer("intermediate_size", least=1),
        "vocab_size": vocab_size,
        "draft_vocab_size": reader.integer("draft_vocab_size", vocab_size),
        "target_hidden_size": reader.integer("target_hidden_size", hidden, least=1),
        "rope_theta": rope_theta,
        "rope_scaling": rope_scaling,
        "rms_norm_eps": reader.number("rms_norm_eps", 1e-6),
        "max_position_embeddings": reader.integer("max_position_embeddings", 4096, least=1),
        "attention_bias": reader.flag("attention_bias"),
        "activation": reader.choice("hidden_act", "silu", ACTIVATIONS),
        "layout": layout,
        "source": reader.source,
    }


def target_vocab_size(data: Mapping[str, Any], source: str) -> int:
    """Size of the vocabulary in a language model's config, nested under `text_config` or not."""
    return ConfigReader([data.get("text_config") or {}, data], source).integer(
        "vocab_size", least=1
    )
