"""Statistical checks of an output distribution, for what cannot be enumerated: real models, device
kernels.

Each token of a text is one observation: given the tokens before it, its distribution under the
target is known exactly. So counts minus their expectations form a martingale whatever the texts
are, and sums over positions, texts and prompts may be tested as if tokens were independent.

An assertion fails by chance with probability FAMILY_ERROR, over all its tests together, in the
chi-square and normal approximations; bins are merged until these hold.
"""

from collections.abc import Hashable, Sequence

import numpy as np
import torch
from attrs import frozen
from scipy import stats
from torch import Tensor

FAMILY_ERROR = 1e-9
LEAST_EXPECTED = 50.0
"""Bins with fewer expected counts are merged with their neighbour."""

RANKS = (1, 2, 3, 5, 9, 17, 33)
"""Bins hold the tokens from one of these ranks in their distribution to the next: the best, the
second..."""


@frozen
class Evidence:
    """One test. statistic: chi-square with `freedom`, or squared normal deviate. count: tokens or
    rounds it rests on. p_value: chance of a statistic as large from an exact pipeline."""

    name: str
    statistic: float
    freedom: int
    count: int
    p_value: float

    def __str__(self) -> str:
        return f"{self.name}: p = {self.p_value:.2g} ({self.count} observations)"


@frozen(eq=False)
class Binned:
    """Tokens and their distributions, by bins. expected: (n, B) probability of each bin; observed:
    (n,) the bin of each token."""

    expected: np.ndarray
    observed: np.ndarray

    @classmethod
    def joined(cls, parts: "Sequence[Binned]") -> "Binned":
        return cls(
            np.concatenate([part.expected for part in parts]),
            np.concatenate([part.observed for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.observed)


def by_rank(distributions: Tensor, tokens: Sequence[int]) -> Binned:
    """Bins by rank in the distribution: the best token, the second, the third and fourth, and so
    on.

    distributions: (n, V), row i the distribution of token i given what came before it.
    """
    ids = torch.tensor(tokens, device=distributions.device)[:, None]
    chosen = distributions.gather(1, ids)
    # Equally likely tokens are ranked by id: they must not all fall into one bin.
    earlier = (distributions == chosen) & (
        torch.arange(distributions.shape[1], device=distributions.device) < ids
    )
    ranks = ((distributions > chosen) | earlier).sum(1).cpu().numpy()
    edges = [rank for rank in RANKS if rank < distributions.shape[1]]
    ordered = distributions.double().topk(edges[-1], 1).values.cumsum(1).cpu().numpy()
    columns = [np.zeros(len(tokens)), *(ordered[:, edge - 1] for edge in edges)]
    columns.append(distributions.double().sum(1).cpu().numpy())
    return Binned(np.diff(np.column_stack(columns), axis=1), np.searchsorted(edges, ranks, "right"))


def by_token(distributions: Tensor, tokens: Sequence[int], chosen: Sequence[int]) -> Binned:
    """A bin for each chosen token, most likely first, and one for all others."""
    own = distributions[:, list(chosen)].double().cpu().numpy()
    rest = distributions.double().sum(1).cpu().numpy() - own.sum(1)
    index = {token: i for i, token in enumerate(chosen)}
    observed = np.array([index.get(token, len(chosen)) for token in tokens])
    return Binned(np.column_stack([own, rest]), observed)


def distribution_test(
    binned: Binned, groups: Sequence[Hashable] = (), name: str = "distribution"
) -> Evidence:
    """Chi-square of tokens against their own distributions.

    groups: a label for each token, known before it (its position, the token before it): counts are
    compared group by group and the statistics added. A bias that depends on the label shows only
    so: per position, or conditional on the token before (a test of pairs).
    """
    observed = np.zeros_like(binned.expected)
    observed[np.arange(len(binned)), binned.observed] = 1.0
    labels = list(groups) or [0] * len(binned)
    statistic, freedom, count = 0.0, 0, 0
    for label in dict.fromkeys(labels):
        rows = np.array([i for i, each in enumerate(labels) if each == label])
        more, dimensions = _chi_square(*_merged(observed[rows], binned.expected[rows]))
        statistic, freedom = statistic + more, freedom + dimensions
        count += len(rows) if dimensions else 0
    p_value = float(stats.chi2.sf(statistic, freedom)) if freedom else 1.0
    return Evidence(name, statistic, freedom, count, p_value)


def support_test(impossible: int, count: int, name: str = "support") -> Evidence:
    """No token may have probability zero: one is enough. impossible: how many of `count` had."""
    return Evidence(name, float(impossible), 0, count, 0.0 if impossible else 1.0)


def acceptance_test(
    accepted: Sequence[bool], probabilities: Sequence[float], name: str = "acceptance"
) -> Evidence:
    """Whether drafts are accepted as often as theory says.

    probabilities: of each decision given all before it, the draft included: p(children) for a tree
    of best tokens under `match`, min(1, p/q) for a drawn chain under `ratio`.
    """
    p = np.asarray(probabilities, dtype=float)
    variance = float((p * (1 - p)).sum())
    off = abs(float(np.sum(accepted)) - float(p.sum()))
    if variance < LEAST_EXPECTED / 2:
        return Evidence(name, 0.0, 0, len(p), 1.0)
    return Evidence(name, off**2 / variance, 1, len(p), float(stats.chi2.sf(off**2 / variance, 1)))


def assert_all(tests: Sequence[Evidence], error: float = FAMILY_ERROR) -> None:
    """Raise AssertionError if any test fails; an exact pipeline does so with chance `error`."""
    wrong = [test for test in tests if test.p_value < error / len(tests)]
    if wrong:
        raise AssertionError(
            "the output distribution is not the target's:\n"
            + "\n".join(f"  {test}" for test in sorted(wrong, key=lambda test: test.p_value))
        )


def samples_needed(
    bias: float, bins: int = len(RANKS), error: float = FAMILY_ERROR, power: float = 0.99
) -> int:
    """Tokens for which a total variation of `bias` between the binned distributions is found.

    The chi-square distance of two distributions is at least four times their squared total
    variation."""
    threshold = stats.chi2.isf(error, bins)
    low, high = 1.0, 1e4
    for _ in range(60):
        middle = (low + high) / 2
        if stats.ncx2.sf(threshold, bins, middle) < power:
            low = middle
        else:
            high = middle
    return int(np.ceil(high / (4 * bias**2)))


def _merged(observed: np.ndarray, expected: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both (n, B), with columns joined from left to right until each expects enough."""
    parts: list[list[int]] = [[]]
    for column in range(expected.shape[1]):
        parts[-1].append(column)
        if expected[:, parts[-1]].sum() >= LEAST_EXPECTED:
            parts.append([])
    if len(parts) > 1:
        parts[-2].extend(parts.pop())
    return (
        np.column_stack([observed[:, part].sum(1) for part in parts]),
        np.column_stack([expected[:, part].sum(1) for part in parts]),
    )


def _chi_square(observed: np.ndarray, expected: np.ndarray) -> tuple[float, int]:
    """(statistic, degrees of freedom) of the summed rows, whose covariance is that of draws with
    these probabilities, row by row."""
    if expected.shape[1] < 2:
        return 0.0, 0
    off = (observed - expected).sum(0)[:-1]
    p = expected[:, :-1]
    covariance = np.diag(p.sum(0)) - p.T @ p
    # Nearly certain distributions leave directions in which nothing can vary: those are not tested.
    values, vectors = np.linalg.eigh(covariance)
    kept = values > LEAST_EXPECTED / 10
    turned = vectors[:, kept].T @ off
    return float((turned**2 / values[kept]).sum()), int(kept.sum())
