"""Hugging Face's logits processors and stopping criteria, as the engine calls them.

What depends on the path (penalties, n-grams, minimum length, biases) is built here and runs node
by node on each node's own path. Temperature and filters do not; see `core.distributions`.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import (
    MinNewTokensLengthLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
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
    found: list[Any] = []
    try:
        if options.sequence_bias:
            bias = [[list(ids), float(value)] for ids, value in options.sequence_bias]
            found.append(SequenceBiasLogitsProcessor(bias))
        if options.repetition_penalty != 1.0:
            found.append(RepetitionPenaltyLogitsProcessor(float(options.repetition_penalty)))
        if options.no_repeat_ngram_size:
            found.append(NoRepeatNGramLogitsProcessor(options.no_repeat_ngram_size))
        if options.min_new_tokens and eos:
            minimum = options.min_new_tokens
            found.append(
                MinNewTokensLengthLogitsProcessor(prompt_length, minimum, eos, device=str(device))
            )
    except ValueError as error:
        raise RequestError(f"bad generation option: {error}") from error
    return [*found, *extra]


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
