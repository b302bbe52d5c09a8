"""Sampled text of a pipeline against the target's own conditionals."""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from attrs import define, evolve, field, frozen
from torch import Tensor

from draftwood.core.distributions import sampling_probs
from draftwood.core.generation import Pipeline
from draftwood.core.options import Sampling
from draftwood.testing.lossless.report import Speculation
from draftwood.testing.lossless.scoring import scores_along
from draftwood.testing.statistics import (
    FAMILY_ERROR,
    Binned,
    Evidence,
    by_rank,
    by_token,
    distribution_test,
    samples_needed,
    support_test,
)

SMALLEST_BIAS = 0.1
"""Total variation of the next token's distribution that a sample is large enough to find, unless
another is asked for."""

BOUNDARY = 1e-3
"""Scores this near to a filter's edge, relative to the largest, may fall on either side of it."""


@frozen
class Distribution:
    """temperature: that was sampled at. tokens: how many. tests: what was tested of them.
    smallest_bias: that they are enough to find, as a total variation of the next token's
    distribution."""

    temperature: float
    tokens: int
    tests: tuple[Evidence, ...]
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
            "tests": [
                {
                    "name": test.name,
                    "statistic": test.statistic,
                    "freedom": test.freedom,
                    "count": test.count,
                    "p_value": test.p_value,
                }
                for test in self.tests
            ],
        }


def check_distribution(
    pipeline: Pipeline,
    prompts: Sequence[Sequence[int]],
    tokens: int,
    smallest_bias: float = SMALLEST_BIAS,
) -> Distribution:
    """Sample texts of `tokens` until a bias of `smallest_bias` would show, and test by rank, by
    token, by position, by pairs and by support. The temperature is the pipeline's own if it
    samples, else 1."""
    sampling = pipeline.generation.sampling
    if sampling.greedy:
        sampling = evolve(sampling, temperature=1.0)
    needed, seen = samples_needed(smallest_bias), _Seen()
    # The first text only says which tokens deserve a bin of their own: bins are chosen blindly.
    _, distributions, _ = _sample(pipeline, prompts[0], sampling, tokens, seed=0)
    likely = distributions.sum(0).topk(min(15, distributions.shape[1] - 1)).indices.tolist()
    for seed in itertools.count(1):
        if len(seen.positions) >= needed:
            break
        prompt = prompts[seed % len(prompts)]
        found, distributions, ran = _sample(pipeline, prompt, sampling, tokens, seed)
        seen.add(prompt[-1], found, distributions, likely, ran)
    return Distribution(
        sampling.temperature,
        len(seen.positions),
        seen.tests(likely),
        seen.speculation,
        smallest_bias,
    )


def _sample(
    pipeline: Pipeline, prompt: Sequence[int], sampling: Sampling, tokens: int, seed: int
) -> tuple[tuple[int, ...], Tensor, Speculation]:
    """A text, its tokens' distributions under the target, and how far speculation ran."""
    asked: dict[str, Any] = {"temperature": sampling.temperature, "max_new_tokens": tokens}
    found = pipeline.generate(prompt, **asked, seed=seed)
    processors = pipeline.request(prompt, **asked, seed=0).processors
    scores = scores_along(pipeline.target, prompt, found.tokens, processors)
    distributions = _allowing_the_edge(scores, found.tokens, sampling)
    return found.tokens, distributions, Speculation.of(found)


@define
class _Seen:
    """What is kept of the texts: bins, not distributions, which are as wide as the vocabulary."""

    ranks: list[Binned] = field(factory=list)
    named: list[Binned] = field(factory=list)
    positions: list[int] = field(factory=list)
    before: list[int] = field(factory=list)
    impossible: int = 0
    speculation: Speculation = field(factory=Speculation)

    def add(
        self,
        last: int,
        text: Sequence[int],
        distributions: Tensor,
        likely: Sequence[int],
        ran: Speculation,
    ) -> None:
        self.ranks.append(by_rank(distributions, text))
        self.named.append(by_token(distributions, text, likely))
        self.positions.extend(range(len(text)))
        self.before.extend((last, *text[:-1]))
        self.impossible += int((distributions.gather(1, torch.tensor(text)[:, None]) <= 0).sum())
        self.speculation += ran

    def tests(self, likely: Sequence[int]) -> tuple[Evidence, ...]:
        ranks = Binned.joined(self.ranks)
        pairs = [token if token in likely[:4] else None for token in self.before]
        places = [min(position, 8) for position in self.positions]
        return (
            support_test(self.impossible, len(ranks)),
            distribution_test(ranks, name="by rank"),
            distribution_test(Binned.joined(self.named), name="by token"),
            distribution_test(ranks, places, "by rank at each position"),
            distribution_test(ranks, pairs, "by rank after each token"),
        )


def _allowing_the_edge(scores: Tensor, tokens: Sequence[int], sampling: Sampling) -> Tensor:
    """Distributions (n, V). A token outside its distribution by rounding alone, since it was scored
    in another shape of forward, is given the probability of the token it was confused with."""
    distributions = sampling_probs(scores, sampling)
    for row, token in enumerate(tokens):
        if distributions[row, token] > 0:
            continue
        kept = distributions[row] > 0
        edge = scores[row][kept].min()
        largest = scores[row][scores[row] > -torch.inf].abs().max()
        if edge - scores[row, token] <= BOUNDARY * largest:
            distributions[row, token] = distributions[row][kept].min()
    return distributions
