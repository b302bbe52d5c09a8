"""Sampled text of a pipeline against the target's own conditional distributions."""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from attrs import asdict, define, evolve, field, frozen
from torch import Tensor

from draftwood.core.distributions import sampling_probs
from draftwood.core.generation import Pipeline
from draftwood.core.options import Sampling
from draftwood.testing.lossless.scoring import scores_along
from draftwood.testing.lossless.speculation import Speculation
from draftwood.testing.statistics import (
    FAMILY_ERROR,
    Binned,
    StatisticalTest,
    by_rank,
    by_token,
    distribution_test,
    samples_needed,
    support_test,
)

SMALLEST_BIAS = 0.1
"""By default a sample is large enough to find this total variation of the next token's
distribution."""

BOUNDARY = 1e-3
"""Scores this near to a filter's edge, relative to the largest, may fall on either side of it."""


@frozen
class DistributionEvidence:
    """Tests of sampled text.

    Attributes:
        temperature: That was sampled at.
        tokens: Number of tokens sampled.
        tests: Their results.
        speculation: Of the pipeline.
        smallest_bias: That so many tokens show, as a total variation of the next token's
            distribution.
    """

    temperature: float
    tokens: int
    tests: tuple[StatisticalTest, ...]
    speculation: Speculation = field(factory=Speculation)
    smallest_bias: float = SMALLEST_BIAS

    @property
    def biased(self) -> bool:
        return any(test.p_value < FAMILY_ERROR / len(self.tests) for test in self.tests)

    def as_dict(self) -> dict[str, Any]:
        return {
            "temperature": self.temperature,
            "tokens": self.tokens,
            "family_error": FAMILY_ERROR,
            "smallest_bias": self.smallest_bias,
            "tests": [asdict(test) for test in self.tests],
        }


def check_distribution(
    pipeline: Pipeline,
    prompts: Sequence[Sequence[int]],
    tokens: int,
    smallest_bias: float = SMALLEST_BIAS,
) -> DistributionEvidence:
    """Sample texts until a given bias would show, and test them.

    The tests are by rank, by token, by position, by pairs and by support. The temperature is the
    pipeline's own if it samples, else 1.

    Args:
        pipeline: To sample from.
        prompts: Token ids, used in turn.
        tokens: New tokens of a text.
        smallest_bias: Total variation that the sample must show.
    """
    sampling = pipeline.generation.sampling
    if sampling.greedy:
        sampling = evolve(sampling, temperature=1.0)
    needed = samples_needed(smallest_bias)
    # The first text only chooses the tokens that get their own bin. It is not part of the sample,
    # which therefore does not depend on the bins.
    _, probs, _ = _sample(pipeline, prompts[0], sampling, tokens, seed=0)
    sample = _Sample(probs.sum(0).topk(min(15, probs.shape[1] - 1)).indices.tolist())
    for seed in itertools.count(1):
        if len(sample.positions) >= needed:
            break
        prompt = prompts[seed % len(prompts)]
        sample.add(prompt[-1], *_sample(pipeline, prompt, sampling, tokens, seed))
    return DistributionEvidence(
        sampling.temperature,
        len(sample.positions),
        sample.tests(),
        sample.speculation,
        smallest_bias,
    )


def _sample(
    pipeline: Pipeline, prompt: Sequence[int], sampling: Sampling, tokens: int, seed: int
) -> tuple[tuple[int, ...], Tensor, Speculation]:
    """A text, its tokens' distributions (n, V) under the target, and how much it speculated."""
    options: dict[str, Any] = {"temperature": sampling.temperature, "max_new_tokens": tokens}
    output = pipeline.generate(prompt, **options, seed=seed)
    processors = pipeline.request(prompt, **options, seed=0).processors
    scores = scores_along(pipeline.target, prompt, output.tokens, processors)
    probs = probs_with_edge(scores, output.tokens, sampling)
    return output.tokens, probs, Speculation.of(output)


@define
class _Sample:
    """What is kept of the texts: bins, since distributions are as wide as the vocabulary.

    likely: tokens that have their own bin, the likeliest first.
    """

    likely: Sequence[int]
    ranks: list[Binned] = field(factory=list)
    named: list[Binned] = field(factory=list)
    positions: list[int] = field(factory=list)
    before: list[int] = field(factory=list)
    impossible: int = 0
    speculation: Speculation = field(factory=Speculation)

    def add(self, last: int, text: Sequence[int], probs: Tensor, ran: Speculation) -> None:
        """Add a text after a prompt that ends in `last`; probs: (n, V) of its tokens."""
        self.ranks.append(by_rank(probs, text))
        self.named.append(by_token(probs, text, self.likely))
        self.positions.extend(range(len(text)))
        self.before.extend((last, *text[:-1]))
        self.impossible += int((probs.gather(1, torch.tensor(text)[:, None]) <= 0).sum())
        self.speculation += ran

    def tests(self) -> tuple[StatisticalTest, ...]:
        ranks = Binned.joined(self.ranks)
        pairs = [token if token in self.likely[:4] else None for token in self.before]
        places = [min(position, 8) for position in self.positions]
        return (
            support_test(self.impossible, len(ranks)),
            distribution_test(ranks, name="by rank"),
            distribution_test(Binned.joined(self.named), name="by token"),
            distribution_test(ranks, places, "by rank at each position"),
            distribution_test(ranks, pairs, "by rank after each token"),
        )


def probs_with_edge(scores: Tensor, tokens: Sequence[int], sampling: Sampling) -> Tensor:
    """(n, V) distributions that hold the tokens, except those further than rounding outside.

    The pipeline scored a token in a forward of another shape. If rounding alone puts it outside a
    filter here, it gets the probability of the least likely token inside.
    """
    probs = sampling_probs(scores, sampling)
    for row, token in enumerate(tokens):
        if probs[row, token] > 0:
            continue
        kept = probs[row] > 0
        edge = scores[row][kept].min()
        largest = scores[row][scores[row] > -torch.inf].abs().max()
        if edge - scores[row, token] <= BOUNDARY * largest:
            probs[row, token] = probs[row][kept].min()
    return probs
