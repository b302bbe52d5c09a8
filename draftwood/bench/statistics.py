"""Medians, spreads and bootstrap intervals; resamples depend on a seed alone."""

from collections.abc import Sequence

import numpy as np
from attrs import frozen

RESAMPLES, LEVEL = 2000, 0.95


@frozen
class Spread:
    """Median and quartiles of `count` numbers."""

    median: float
    low: float
    high: float
    count: int


@frozen
class Ratio:
    """A ratio with its interval, which is None with fewer than two prompts."""

    value: float
    low: float | None
    high: float | None


def spread(values: Sequence[float]) -> Spread | None:
    """Median and quartiles; None without values."""
    if not values:
        return None
    low, median, high = np.percentile(np.asarray(values, dtype=float), [25, 50, 75]).tolist()
    return Spread(median, low, high, len(values))


def rate(amounts: Sequence[float], seconds: Sequence[float], seed: int) -> Ratio:
    """sum(amounts) / sum(seconds) over prompts, with its bootstrap interval."""
    ones = np.ones(len(amounts))
    return _bootstrap(np.array([amounts, seconds, ones, ones], dtype=float), seed)


def speedup(
    ours: Sequence[tuple[float, float]], theirs: Sequence[tuple[float, float]], seed: int
) -> Ratio:
    """The ratio of our rate to theirs, pooled over prompts.

    The interval is the percentile bootstrap over prompts, drawn as pairs, so that a prompt that is
    slow for both does not widen it. The repetitions of a prompt are not independent and stay
    together in its sums.

    Args:
        ours: (tokens, seconds) of each prompt.
        theirs: The same prompts in the same order.
        seed: Of the resamples.
    """
    if len(ours) != len(theirs):
        raise ValueError(f"{len(ours)} and {len(theirs)} prompts are not pairs")
    (tokens, seconds), (their_tokens, their_seconds) = (
        np.array(side, dtype=float).T for side in (ours, theirs)
    )
    return _bootstrap(np.stack([tokens, seconds, their_seconds, their_tokens]), seed)


def _bootstrap(columns: np.ndarray, seed: int) -> Ratio:
    """(a / b) * (c / d) of the sums of (4, P) columns a, b, c, d over P prompts."""
    value = float(_value(columns.sum(1)))
    count = columns.shape[1]
    if count < 2:
        return Ratio(value, None, None)
    drawn = np.random.default_rng(seed).integers(count, size=(RESAMPLES, count))
    values = _value(columns[:, drawn].sum(2))
    tail = 50 * (1 - LEVEL)
    low, high = np.percentile(values, [tail, 100 - tail]).tolist()
    return Ratio(value, low, high)


def _value(sums: np.ndarray) -> np.ndarray:
    a, b, c, d = sums
    value: np.ndarray = (a / b) * (c / d)
    return value
