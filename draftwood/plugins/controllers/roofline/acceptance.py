"""What a tree is worth to this text: the drafter's scores, corrected by what was accepted.

At each depth the drafter's conditionals are multiplied by one factor: over nodes whose parent was
accepted, how often some child was accepted, over how often the scores said so. A request starts
with a mild distrust, since over-estimating a tree costs far more than under-estimating it.
"""

import math
from functools import cached_property

from attrs import frozen

from draftwood.core.tree import TokenTree
from draftwood.core.values import Verdict

PRIOR, PRIOR_COUNT = 0.95, 4.0
"""The factor of a request's first round, and how many observations it counts as."""

DEPTH_COUNT = 12.0
"""Observations that the factor over all depths counts as at each single depth."""

DECAY = 0.97
"""Weight of a round after the next one: about thirty rounds are remembered."""

LOWEST, HIGHEST = 0.02, 3.0


@frozen
class Acceptance:
    """Decayed counts by depth, of rounds whose path reached it: taken, how often it went on;
    mass, how often the scores expected it to."""

    taken: tuple[float, ...] = ()
    mass: tuple[float, ...] = ()

    def learn(self, tree: TokenTree, verdict: Verdict) -> "Acceptance":
        """Counts after a round that verified `tree`."""
        taken = [DECAY * count for count in self.taken]
        mass = [DECAY * count for count in self.mass]
        log_rho, children = tree.log_rho_list, tree.children
        for depth, node in enumerate(verdict.accepted):
            if not children[node]:
                break
            if depth == len(taken):
                taken.append(0.0)
                mass.append(0.0)
            taken[depth] += depth + 1 < len(verdict.accepted)
            mass[depth] += sum(math.exp(log_rho[child] - log_rho[node]) for child in children[node])
        return Acceptance(tuple(taken), tuple(mass))

    def forget(self, share: float) -> "Acceptance":
        """The same counts at `share` of their weight."""
        return Acceptance(
            tuple(share * count for count in self.taken),
            tuple(share * count for count in self.mass),
        )

    def factors(self, depth: int) -> list[float]:
        """Log factors of the conditionals at depths 1..depth."""
        known, overall = self._factors
        return known[:depth] + [overall] * (depth - len(known))

    @cached_property
    def _factors(self) -> tuple[list[float], float]:
        """Log factors of the depths that were seen, and of any other: a round asks thrice."""
        overall = _ratio(PRIOR, PRIOR_COUNT, sum(self.taken), sum(self.mass))
        known = [
            math.log(_ratio(overall, DEPTH_COUNT, taken, mass))
            for taken, mass in zip(self.taken, self.mass, strict=True)
        ]
        return known, math.log(overall)

    def gain(self) -> float:
        """Most that the correction may raise a path score by, as deep as any depth was seen, and
        two deeper."""
        factors = self.factors(len(self.taken) + 2)
        return math.exp(sum(max(0.0, factor) for factor in factors))

    def expected_tokens(self, tree: TokenTree) -> list[float]:
        """A^(0..N): expected tokens of a round that verifies the first n draft nodes.

        Corrected conditionals are clipped at one, so that scores never increase along a path.
        """
        parents, depths, log_rho = tree.parent_list, tree.depth_list, tree.log_rho_list
        factors = [0.0, *self.factors(max(depths))]
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


def _ratio(prior: float, count: float, taken: float, mass: float) -> float:
    return min(HIGHEST, max(LOWEST, (prior * count + taken) / (count + mass)))
