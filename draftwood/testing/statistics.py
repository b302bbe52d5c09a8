"""Statistical tests of output distributions that cannot be enumerated: real models, device kernels.

Each token of a text is one observation: given the tokens before it, its distribution under the
target is known exactly. Counts minus their expectations therefore form a martingale for all texts,
and sums over positions, texts and prompts can be tested as if tokens were independent.

An assertion fails by chance with probability FAMILY_ERROR, over all its tests together, in the
chi-square and normal approximations. Bins are merged until these approximations hold.
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
"""Edges of the rank bins: the best token, the second, the third, ranks 4 and 5, and so on."""


@frozen
class StatisticalTest:
    """The result of one test.

    Attributes:
        name: Of the test.
        statistic: Chi-square, or squared normal deviate.
        freedom: Degrees of freedom.
        count: Number of tokens or rounds.
        p_value: Probability of a statistic as large for an exact pipeline.
    """

    name: str
    statistic: float
    freedom: int
    count: int
    p_value: float

    def __str__(self) -> str:
        return f"{self.name}: p = {self.p_value:.2g} ({self.count} observations)"


@frozen(eq=False)
class Binned:
    """Tokens and their distributions, by bins.

    Attributes:
        expected: (n, B) probability of each bin.
        observed: (n,) bin of each token.
    """

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


def by_rank(probs: Tensor, tokens: Sequence[int]) -> Binned:
    """Bin tokens by their rank in their distribution; see RANKS.

    Args:
        probs: (n, V); row i is the distribution of token i given what comes before it.
        tokens: n token ids.
    """
    ids = torch.tensor(tokens, device=probs.device)[:, None]
    chosen = probs.gather(1, ids)
    # Equally likely tokens are ranked by id: they must not all fall into one bin.
    earlier = (probs == chosen) & (torch.arange(probs.shape[1], device=probs.device) < ids)
    ranks = ((probs > chosen) | earlier).sum(1).cpu().numpy()
    edges = [rank for rank in RANKS if rank < probs.shape[1]]
    ordered = probs.double().topk(edges[-1], 1).values.cumsum(1).cpu().numpy()
    columns = [np.zeros(len(tokens)), *(ordered[:, edge - 1] for edge in edges)]
    columns.append(probs.double().sum(1).cpu().numpy())
    return Binned(np.diff(np.column_stack(columns), axis=1), np.searchsorted(edges, ranks, "right"))


def by_token(probs: Tensor, tokens: Sequence[int], chosen: Sequence[int]) -> Binned:
    """Bin tokens by id: a bin for each chosen token, and one for all others.

    Args:
        probs: (n, V); row i is the distribution of token i given what comes before it.
        tokens: n token ids.
        chosen: Ids, the likeliest first.
    """
    own = probs[:, list(chosen)].double().cpu().numpy()
    rest = probs.double().sum(1).cpu().numpy() - own.sum(1)
    index = {token: i for i, token in enumerate(chosen)}
    observed = np.array([index.get(token, len(chosen)) for token in tokens])
    return Binned(np.column_stack([own, rest]), observed)


def distribution_test(
    binned: Binned, groups: Sequence[Hashable] = (), name: str = "distribution"
) -> StatisticalTest:
    """Test tokens against their own distributions, by chi-square.

    Args:
        binned: The tokens.
        groups: A label for each token that is known before it, such as its position or the token
            before it (a test of pairs). Counts are compared group by group and the statistics
            added, which shows a bias that depends on the label.
        name: Of the result.
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
    return StatisticalTest(name, statistic, freedom, count, p_value)


def support_test(impossible: int, count: int, name: str = "support") -> StatisticalTest:
    """Test that none of `count` tokens has probability zero; `impossible` of them do."""
    return StatisticalTest(name, float(impossible), 0, count, 0.0 if impossible else 1.0)


def acceptance_test(
    accepted: Sequence[bool], probabilities: Sequence[float], name: str = "acceptance"
) -> StatisticalTest:
    """Test that drafts are accepted as often as theory says.

    Args:
        accepted: Each decision.
        probabilities: Of each decision given everything before it, the draft included: p(children)
            for a deterministic tree under `match`, min(1, p/q) for a drawn chain under `ratio`.
        name: Of the result.
    """
    p = np.asarray(probabilities, dtype=float)
    variance = float((p * (1 - p)).sum())
    off = abs(float(np.sum(accepted)) - float(p.sum()))
    if variance < LEAST_EXPECTED / 2:
        return StatisticalTest(name, 0.0, 0, len(p), 1.0)
    return StatisticalTest(
        name, off**2 / variance, 1, len(p), float(stats.chi2.sf(off**2 / variance, 1))
    )


def assert_all(tests: Sequence[StatisticalTest], error: float = FAMILY_ERROR) -> None:
    """Check all tests together; an exact pipeline fails with probability `error`.

    Raises:
        AssertionError: If any test fails, with the failed ones.
    """
    wrong = [test for test in tests if test.p_value < error / len(tests)]
    if wrong:
        raise AssertionError(
            "the output distribution is not the target's:\n"
            + "\n".join(f"  {test}" for test in sorted(wrong, key=lambda test: test.p_value))
        )


def samples_needed(
    bias: float, bins: int = len(RANKS), error: float = FAMILY_ERROR, power: float = 0.99
) -> int:
    """The number of tokens that shows a bias with probability `power`.

    The chi-square distance of two distributions is at least four times their squared total
    variation.

    Args:
        bias: Total variation between the binned distributions.
        bins: Number of bins.
        error: Probability that an exact pipeline fails.
        power: Probability that a biased one does.
    """
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
    """Both (n, B), with columns joined from left to right until each has LEAST_EXPECTED."""
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
    """(statistic, degrees of freedom) of the summed rows, which are drawn independently."""
    if expected.shape[1] < 2:
        return 0.0, 0
    off = (observed - expected).sum(0)[:-1]
    p = expected[:, :-1]
    covariance = np.diag(p.sum(0)) - p.T @ p
    # Nearly certain distributions have directions without variance; these are not tested.
    values, vectors = np.linalg.eigh(covariance)
    kept = values > LEAST_EXPECTED / 10
    projected = vectors[:, kept].T @ off
    return float((projected**2 / values[kept]).sum()), int(kept.sum())
