"""Hugging Face's logits processors and stopping criteria, as the engine calls them.

What depends on the path (penalties, n-grams, minimum length, biases) runs here, node by node with
each node's own tokens; temperature and filters do not and are `core.distributions`.
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
    """The processors that `generate` would build for these options, in its order, then `extra`.

    prompt_length: tokens of the prompt, which min_new_tokens does not count. device: where scores
    will be. vocab_size: width of the scores, to check biased ids against. Each takes the whole
    text up to a node. Raises RequestError for what they would reject.
    """
    eos = sorted(eos_ids)
    for ids, _ in options.sequence_bias:
        if not ids or min(ids) < 0 or (vocab_size is not None and max(ids) >= vocab_size):
            last = "" if vocab_size is None else f", 0 to {vocab_size - 1}"
            raise RequestError(f"sequence_bias: {list(ids)} is no sequence of token ids{last}")
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
    """A StoppingCriteriaList as a rule on the text so far (prompt included): whether to stop.

    Criteria that read scores are not supported: a run is judged before its distributions are kept.
    """

    def stops(ids: Sequence[int]) -> bool:
        text = torch.tensor([list(ids)], device=device)
        return any(bool(torch.as_tensor(rule(text, None)).any()) for rule in criteria)

    return stops
