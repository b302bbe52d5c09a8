"""Hugging Face's own decoding, on the model object that a target wraps, for comparisons."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from attrs import define, frozen
from torch import Tensor
from transformers import StoppingCriteria, StoppingCriteriaList

from draftwood.core.errors import PairingError, RequestError
from draftwood.core.hf.loading import load_target
from draftwood.core.hf.target import HFTarget
from draftwood.core.interfaces import Target
from draftwood.core.options import CONSTRAINTS, GenerationOptions


@frozen
class Generated:
    """One decoded prompt.

    Attributes:
        tokens: the new tokens.
        seconds: time until the last token.
        first_seconds: time until the first `first_tokens` tokens.
        first_tokens: number of tokens that came first, together.
    """

    tokens: tuple[int, ...]
    seconds: float
    first_seconds: float
    first_tokens: int


@define
class _Watch(StoppingCriteria):
    """Never stops; records when it was first called with new tokens."""

    clock: Callable[[], float]
    prompt: int
    at: float | None = None
    tokens: int = 0

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        if self.at is None and input_ids.shape[1] > self.prompt:
            self.at, self.tokens = self.clock(), input_ids.shape[1] - self.prompt
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


class HFGenerate:
    """`model.generate` with this project's options, one prompt at a time.

    Args:
        tokenizer: for stop strings.
        extra: keywords of `generate` that choose how it decodes.

    Raises:
        RequestError: the target wraps no Hugging Face model.
    """

    def __init__(
        self,
        target: Target,
        options: GenerationOptions,
        *,
        tokenizer: Any | None = None,
        clock: Callable[[], float] = time.perf_counter,
        **extra: Any,
    ) -> None:
        if not isinstance(target, HFTarget):
            raise RequestError(
                f"Hugging Face's generate needs a Hugging Face model, not a {type(target).__name__}"
            )
        self.target, self.clock = target, clock
        self.options = options.completed_by(target.generation_defaults)
        self.keywords = {**_keywords(target, self.options, tokenizer), **extra}

    def __call__(self, prompt: Sequence[int], seed: int) -> Generated:
        """Decode one prompt. `seed` is used above temperature 0; torch's own state is kept."""
        ids = torch.tensor([list(prompt)], device=self.target.device)
        watch = _Watch(self.clock, len(prompt))
        with torch.random.fork_rng(enabled=not self.options.greedy):
            if not self.options.greedy:
                torch.manual_seed(seed)
            start = self.clock()
            out = self.target.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                stopping_criteria=StoppingCriteriaList([watch]),
                **self.keywords,
            )
            tokens = tuple(out[0, len(prompt) :].tolist())
            end = self.clock()
        first = end if watch.at is None else watch.at
        return Generated(tokens, end - start, first - start, watch.tokens or len(tokens))


def load_assistant(model: str | Path, target: Target) -> Any:
    """Load a small model for assisted generation, on the target's device and in its dtype.

    Raises:
        CheckpointError: it cannot be loaded.
        PairingError: its vocabulary is not the target's.
    """
    if not isinstance(target, HFTarget):
        raise RequestError("assisted generation needs a Hugging Face model as target")
    dtype = str(target.dtype).removeprefix("torch.")
    assistant = load_target(model, device=str(target.device), dtype=dtype)
    if assistant.vocab_size != target.vocab_size:
        raise PairingError(
            f"assistant {model} scores {assistant.vocab_size} tokens and the target "
            f"{target.vocab_size}: assisted generation needs one vocabulary"
        )
    return assistant.model


def _keywords(
    target: HFTarget, options: GenerationOptions, tokenizer: Any | None
) -> dict[str, Any]:
    """Every option by name, so that none comes from the checkpoint's generation config."""
    eos = target.eos_token_ids if options.eos_token_id is None else options.eos_token_id
    keywords: dict[str, Any] = {
        "max_new_tokens": options.max_new_tokens,
        "do_sample": not options.greedy,
        "repetition_penalty": options.repetition_penalty,
        "no_repeat_ngram_size": options.no_repeat_ngram_size,
        "eos_token_id": sorted(eos) or None,
        "pad_token_id": 0,
    }
    if not options.greedy:
        keywords |= {
            "temperature": options.temperature,
            "top_k": options.top_k or 0,
            "top_p": 1.0 if options.top_p is None else options.top_p,
            "min_p": options.min_p,
        }
    for name in CONSTRAINTS:
        value = getattr(options, name)
        keywords[name] = _listed(value) if isinstance(value, tuple) else value
    if options.min_new_tokens and eos:
        keywords["min_new_tokens"] = options.min_new_tokens
    if options.sequence_bias:
        keywords["sequence_bias"] = [[list(ids), bias] for ids, bias in options.sequence_bias]
    if options.stop_strings:
        keywords |= {"stop_strings": list(options.stop_strings), "tokenizer": tokenizer}
    return keywords


def _listed(value: Any) -> Any:
    """Tuples, nested ones too, as lists, and no list at all for an empty one."""
    return ([_listed(item) for item in value] or None) if isinstance(value, tuple) else value
