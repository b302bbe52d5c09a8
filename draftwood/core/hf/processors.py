"""Hugging Face's logits processors and stopping criteria, as the engine calls them.

What depends on the path (penalties, n-grams, minimum length, biases) is built here and runs node
by node on each node's own path. Temperature and filters do not; see `core.distributions`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import (
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from draftwood.core.errors import RequestError
from draftwood.core.options import GenerationOptions

Processor = Callable[[Tensor, Tensor], Tensor]
"""(ids (1, n) int64, scores (1, V)) -> scores (1, V)."""


def build_processors(
    options: GenerationOptions,
    prompt_length: int,
    eos_ids: Iterable[int],
    extra: Sequence[Processor] = (),
    device: torch.device | str = "cpu",
    vocab_size: int | None = None,
) -> list[Processor]:
    """Build the processors that `generate` builds for these options, in its order, then `extra`.

    Each takes the whole text up to a node.

    Args:
        prompt_length: tokens of the prompt, which min_new_tokens does not count.
        device: where scores will be.
        vocab_size: width of the scores; biased ids must be below it.

    Raises:
        RequestError: a value that a processor rejects.
    """
    eos = sorted(eos_ids)
    for ids, _ in options.sequence_bias:
        if not ids or min(ids) < 0 or (vocab_size is not None and max(ids) >= vocab_size):
            last = "" if vocab_size is None else f", 0 to {vocab_size - 1}"
            raise RequestError(f"sequence_bias: {list(ids)} is not a sequence of token ids{last}")
    arguments = (options, prompt_length, eos, str(device))
    try:
        return [*_by_history(*arguments), *_by_position(*arguments), *extra]
    except ValueError as error:
        raise RequestError(f"bad generation option: {error}") from error


def _by_history(
    options: GenerationOptions, prompt_length: int, eos: list[int], device: str
) -> Iterator[Processor]:
    """Processors that depend on which tokens came before."""
    if options.sequence_bias:
        bias = [[list(ids), float(value)] for ids, value in options.sequence_bias]
        yield SequenceBiasLogitsProcessor(bias)
    if options.repetition_penalty != 1.0:
        yield RepetitionPenaltyLogitsProcessor(float(options.repetition_penalty))
    if options.no_repeat_ngram_size:
        yield NoRepeatNGramLogitsProcessor(options.no_repeat_ngram_size)
    if options.bad_words_ids:
        words = [list(ids) for ids in options.bad_words_ids]
        yield NoBadWordsLogitsProcessor(words, eos or None)


def _by_position(
    options: GenerationOptions, prompt_length: int, eos: list[int], device: str
) -> Iterator[Processor]:
    """Processors that depend on how many tokens came before."""
    bos = options.forced_bos_token_id
    if options.min_new_tokens and eos:
        minimum = options.min_new_tokens
        yield MinNewTokensLengthLogitsProcessor(prompt_length, minimum, eos, device=device)
    if bos is not None:
        yield ForcedBOSTokenLogitsProcessor(bos)
    if options.forced_eos_token_id is not None:
        length, token = prompt_length + options.max_new_tokens, options.forced_eos_token_id
        yield ForcedEOSTokenLogitsProcessor(length, token, device=device)
    if options.suppress_tokens:
        yield SuppressTokensLogitsProcessor(list(options.suppress_tokens), device=device)
    if options.begin_suppress_tokens:
        begin = prompt_length + (prompt_length == 1 and bos is not None)
        tokens = list(options.begin_suppress_tokens)
        yield SuppressTokensAtBeginLogitsProcessor(tokens, begin, device=device)


def adapt_stopping(
    criteria: Sequence[Any], device: torch.device | str = "cpu"
) -> Callable[[Sequence[int]], bool]:
    """Turn a StoppingCriteriaList into a rule on the tokens so far, prompt included.

    Criteria get None for scores: the distributions of a run are not kept.
    """

    def stops(ids: Sequence[int]) -> bool:
        text = torch.tensor([list(ids)], device=device)
        return any(bool(torch.as_tensor(rule(text, None)).any()) for rule in criteria)

    return stops
