"""Options of generation, torch-free. The names are those of GenerationConfig."""

import math
import operator
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from attrs import Attribute, asdict, evolve, field, fields_dict, frozen
from attrs.validators import and_, ge, gt, in_, le, lt, optional

from draftwood.core.errors import RequestError
from draftwood.core.suggestions import key_hint

CONSTRAINTS = (
    "suppress_tokens",
    "begin_suppress_tokens",
    "bad_words_ids",
    "forced_bos_token_id",
    "forced_eos_token_id",
)
"""Options that follow the model's own generation config unless they are given."""

MAX_NODES, MAX_DEPTH = 4096, 512
"""Upper bounds of options that count a tree's nodes or levels: attention over n nodes holds n * n
numbers a head, and drawings recurse for every level."""

MAX_TOKENS = 1 << 24
"""Upper bound of options that count a request's tokens; longer than any model's context."""

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy: one threshold for drafter and target, so that no module
divides by a number that another treats as zero."""


def _whole(_: object, attribute: "Attribute[Any]", value: Any) -> None:
    """Python callers are not checked as strictly as YAML: 2.5 tokens would fail while decoding."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"'{attribute.name}' must be a whole number: {value!r}")


def _ids(_: object, attribute: "Attribute[Any]", value: Any) -> None:
    lists = isinstance(value, Iterable) and not isinstance(value, (str, bytes))
    if not lists or any(isinstance(i, bool) or not hasattr(i, "__index__") for i in value):
        raise TypeError(f"'{attribute.name}' must be a list of token ids: {value!r}")


def _sequences(_: object, attribute: "Attribute[Any]", value: Any) -> None:
    for item in value if isinstance(value, (list, tuple)) else [value]:
        _ids(_, attribute, item)


def _texts(_: object, attribute: "Attribute[Any]", value: Any) -> None:
    """Reject a bare string, whose characters would all be stops, and "", which ends any text."""
    lists = isinstance(value, Iterable) and not isinstance(value, (str, bytes))
    if not lists or not all(isinstance(item, str) and item for item in value):
        raise ValueError(f"'{attribute.name}' must be a list of texts, none empty: {value!r}")


def _flag(_: object, attribute: "Attribute[Any]", value: Any) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"'{attribute.name}' must be True or False: {value!r}")


def _finite(_: object, attribute: "Attribute[Any]", value: Any) -> None:
    """Reject infinities: an infinite temperature turns logits into NaN."""
    if isinstance(value, bool) or not math.isfinite(value):
        raise ValueError(f"'{attribute.name}' must be finite: {value!r}")


def _biases(_: object, attribute: "Attribute[Any]", value: Any) -> None:
    try:
        for ids, bias in value:
            for token in ids:
                operator.index(token)
            float(bias)
    except (TypeError, ValueError):
        raise ValueError(
            f"'{attribute.name}' must be pairs of (token ids, bias), as in [[[5, 7], -2.0]]: "
            f"{value!r}"
        ) from None


@frozen
class Sampling:
    """Temperature and filters, applied in the order of the attributes, as Hugging Face does.

    Attributes:
        temperature: 0 is greedy.
        top_k: Keep the k most likely tokens; None keeps all.
        top_p: Keep the smallest set of tokens with at least this mass, in (0, 1].
        min_p: Drop tokens below this share of the most likely token's probability.
    """

    temperature: float = field(default=0.0, validator=and_(ge(0.0), _finite))
    top_k: int | None = field(default=None, validator=optional(and_(_whole, ge(1))))
    top_p: float | None = field(default=None, validator=optional(and_(gt(0.0), le(1.0), _finite)))
    min_p: float | None = field(default=None, validator=optional(and_(ge(0.0), le(1.0), _finite)))

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature < GREEDY_BELOW


@frozen
class GenerationOptions(Sampling):
    """Options of one request; YAML's `generation:` gives the defaults.

    Attributes:
        max_new_tokens: Most new tokens, the prompt excluded.
        min_new_tokens: Fewest new tokens before an end of text.
        repetition_penalty: 1.0 is none.
        no_repeat_ngram_size: 0 is none.
        sequence_bias: Pairs of (token ids, bias added to the last one's logit).
        eos_token_id: Token ids that end the text; None takes the model's own, () takes none.
        stop_strings: Texts that end the output; the token that completes one is kept.
        suppress_tokens: Token ids that are never chosen; None takes the model's own, () takes none.
        begin_suppress_tokens: Token ids that are not chosen first; None takes the model's own.
        bad_words_ids: Sequences of token ids that are never completed; None takes the model's own.
        forced_bos_token_id: The token after a prompt of one token; None takes the model's own.
        forced_eos_token_id: The token at `max_new_tokens`; None takes the model's own.
        defaults: `model` takes temperature, filters and penalties that are left at draftwood's
            defaults from the checkpoint's generation config; `draftwood` takes none of them.
        seed: None draws one; the result names it.
        logprobs: Return the log-probability of each committed token under the model itself (no
            processor, temperature 1), as servers do.
        top_logprobs: Return this many of the most likely tokens at each place, too, with their
            log-probabilities; 0 returns none.
    """

    max_new_tokens: int = field(default=128, validator=and_(_whole, ge(0), le(MAX_TOKENS)))
    min_new_tokens: int = field(default=0, validator=and_(_whole, ge(0), le(MAX_TOKENS)))
    repetition_penalty: float = field(default=1.0, validator=and_(gt(0.0), _finite))
    no_repeat_ngram_size: int = field(default=0, validator=and_(_whole, ge(0), le(MAX_TOKENS)))
    sequence_bias: tuple[tuple[tuple[int, ...], float], ...] = field(default=(), validator=_biases)
    eos_token_id: tuple[int, ...] | None = field(default=None, validator=optional(_ids))
    stop_strings: tuple[str, ...] = field(default=(), validator=_texts)
    suppress_tokens: tuple[int, ...] | None = field(default=None, validator=optional(_ids))
    begin_suppress_tokens: tuple[int, ...] | None = field(default=None, validator=optional(_ids))
    bad_words_ids: tuple[tuple[int, ...], ...] | None = field(
        default=None, validator=optional(_sequences)
    )
    forced_bos_token_id: int | None = field(default=None, validator=optional(and_(_whole, ge(0))))
    forced_eos_token_id: int | None = field(default=None, validator=optional(and_(_whole, ge(0))))
    defaults: Literal["draftwood", "model"] = field(
        default="draftwood", validator=in_(("draftwood", "model"))
    )
    seed: int | None = field(default=None, validator=optional(and_(_whole, ge(0), lt(2**64))))
    logprobs: bool = field(default=False, validator=_flag)
    top_logprobs: int = field(default=0, validator=and_(_whole, ge(0), le(100)))

    @property
    def sampling(self) -> Sampling:
        """Temperature and filters alone."""
        return Sampling(self.temperature, self.top_k, self.top_p, self.min_p)

    @property
    def path_dependent(self) -> bool:
        """Whether an option makes distributions depend on the tokens of their path."""
        return bool(
            self.min_new_tokens
            or self.repetition_penalty != 1.0
            or self.no_repeat_ngram_size
            or self.sequence_bias
            or self.suppress_tokens
            or self.begin_suppress_tokens
            or self.bad_words_ids
            or self.forced_bos_token_id is not None
            or self.forced_eos_token_id is not None
        )

    def constrained_by(self, model: Mapping[str, Any]) -> "GenerationOptions":
        """These options with the model's own constraints where they are left to the model.

        Args:
            model: `Target.generation_defaults`.
        """
        own = {name: model[name] for name in CONSTRAINTS if name in model}
        return evolve(self, **{name: own[name] for name in own if getattr(self, name) is None})

    def completed_by(self, model: Mapping[str, Any]) -> "GenerationOptions":
        """As `constrained_by`, and with the model's sampling settings if `defaults` says so."""
        if self.defaults == "model":
            unset = GenerationOptions()
            names = (name for name in model if name not in CONSTRAINTS)
            left = [name for name in names if getattr(self, name) == getattr(unset, name)]
            return evolve(self, **{name: model[name] for name in left}).constrained_by(model)
        return self.constrained_by(model)

    def override(self, changes: Mapping[str, Any]) -> "GenerationOptions":
        """These options with `changes`, by name.

        What Hugging Face takes besides is taken, too: a mapping of token ids to biases as
        `sequence_bias`, one id as `eos_token_id`, one text as `stop_strings`.

        Raises:
            RequestError: An option is unknown or its value is wrong; the message names it.
        """
        known = fields_dict(GenerationOptions)
        for name in changes:
            if name not in known:
                hint = key_hint(str(name), known) or f"; choices: {', '.join(sorted(known))}"
                raise RequestError(f"unknown generation option {name!r}{hint}")
        changes = dict(changes)
        bias, eos = changes.get("sequence_bias"), changes.get("eos_token_id")
        if isinstance(bias, Mapping):
            changes["sequence_bias"] = tuple(bias.items())
        if isinstance(eos, int) and not isinstance(eos, bool):
            changes["eos_token_id"] = (eos,)
        if isinstance(changes.get("stop_strings"), str):
            changes["stop_strings"] = (changes["stop_strings"],)
        try:
            return evolve(self, **changes)
        except (TypeError, ValueError) as error:
            raise RequestError(f"bad generation option: {error.args[0]}") from error

    def as_dict(self) -> dict[str, Any]:
        """The options by name."""
        return asdict(self, recurse=False)
