"""Expected tokens of a tree: the drafter's scores, corrected by what this request accepted.

At each depth the drafter's conditional probabilities are multiplied by one factor: over nodes whose
parent was accepted, how often some child was accepted, over how often the scores predicted it. A
new request starts slightly below one, because over-estimating a tree costs far more than
under-estimating it.
"""

import math
from functools import cached_property

from attrs import frozen

from draftwood.core.tree import TokenTree
from draftwood.core.values import Verdict

PRIOR, PRIOR_COUNT = 0.95, 4.0
"""The factor before the first round, and how many observations it counts as."""

DEPTH_COUNT = 12.0
"""Observations that the factor over all depths counts as at each single depth."""

DECAY = 0.97
"""Factor on the counts per round: about thirty rounds are remembered."""

MIN_FACTOR, MAX_FACTOR = 0.02, 3.0


@frozen
class AcceptanceEstimate:
    """Decayed counts per depth, over rounds whose accepted path reached it.

    Attributes:
        accepted: Rounds in which a child was accepted.
        expected: The same as the drafter's scores predicted it.
    """

    accepted: tuple[float, ...] = ()
    expected: tuple[float, ...] = ()

    def learn(self, tree: TokenTree, verdict: Verdict) -> "AcceptanceEstimate":
        """Counts after a round that verified `tree`."""
        accepted = [DECAY * count for count in self.accepted]
        expected = [DECAY * count for count in self.expected]
        log_rho, children = tree.log_rho_list, tree.children
        for depth, node in enumerate(verdict.accepted):
            if not children[node]:
                break
            if depth == len(accepted):
                accepted.append(0.0)
                expected.append(0.0)
            accepted[depth] += depth + 1 < len(verdict.accepted)
            expected[depth] += sum(
                math.exp(log_rho[child] - log_rho[node]) for child in children[node]
            )
        return AcceptanceEstimate(tuple(accepted), tuple(expected))

    def scaled(self, share: float) -> "AcceptanceEstimate":
        """The same counts at `share` of their weight."""
        return AcceptanceEstimate(
            tuple(share * count for count in self.accepted),
            tuple(share * count for count in self.expected),
        )

    def log_factors(self, depth: int) -> list[float]:
        """Log factors of the conditional probabilities at depths 1..depth."""
        by_depth, overall = self._log_factors
        return by_depth[:depth] + [overall] * (depth - len(by_depth))

    @cached_property
    def _log_factors(self) -> tuple[list[float], float]:
        """Log factors of observed depths and of all others; a round reads them three times."""
        overall = _factor(PRIOR, PRIOR_COUNT, sum(self.accepted), sum(self.expected))
        by_depth = [
            math.log(_factor(overall, DEPTH_COUNT, accepted, expected))
            for accepted, expected in zip(self.accepted, self.expected, strict=True)
        ]
        return by_depth, math.log(overall)

    def max_gain(self) -> float:
        """Largest factor on a path score, down to two levels below the deepest observed one."""
        factors = self.log_factors(len(self.accepted) + 2)
        return math.exp(sum(max(0.0, factor) for factor in factors))

    def expected_tokens(self, tree: TokenTree) -> list[float]:
        """A^(0..N): expected tokens of a round that verifies the first n draft nodes.

        Corrected conditionals are clipped at one, so that scores never increase along a path.
        """
        parents, depths, log_rho = tree.parent_list, tree.depth_list, tree.log_rho_list
        factors = [0.0, *self.log_factors(max(depths))]
        scores, total = [0.0], 1.0
        curve = [total]
        exp = math.exp
        for node in range(1, len(parents)):
            parent = parents[node]
            step = log_rho[node] - log_rho[parent] + factors[depths[node]]
            score = scores[parent] + step if step < 0.0 else scores[parent]
            scores.append(score)
            total += exp(score)
            curve.append(total)
        return curve


def _factor(prior: float, count: float, accepted: float, expected: float) -> float:
    factor = (prior * count + accepted) / (count + expected)
    return min(MAX_FACTOR, max(MIN_FACTOR, factor))
