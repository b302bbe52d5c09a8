"""Weights of a union's sources: along the paths of a tree, and learnt from committed tokens."""

import math
from collections.abc import Sequence
from typing import Any

from attrs import frozen

MIN_PROBABILITY = 0.02
"""Least probability that a source is scored with, so that one miss does not exclude it."""

DECAY = 0.95
"""Factor of the log weights per round: about twenty rounds are remembered."""


def posterior_weights(
    weights: Sequence[Any], likelihoods: Sequence[Any], active: Sequence[Any]
) -> list[Any]:
    """The sources' weights after one more token of a path.

    The weight of an active source is multiplied by its probability of the token (Bayes' rule), that
    of an inactive source by the mean of the active ones.

    Args:
        weights: One number, or one (F,) tensor, for each source; they sum to one.
        likelihoods: The token's probability under each source, of any value where inactive.
        active: 1 where a source has a distribution at the parent, else 0.

    Returns:
        Weights that sum to one.
    """
    parts = [w * a for w, a in zip(weights, active, strict=True)]
    mean = sum(p * q for p, q in zip(parts, likelihoods, strict=True)) / sum(parts)
    scaled = [
        w * (a * q + (1 - a) * mean) for w, q, a in zip(weights, likelihoods, active, strict=True)
    ]
    total = sum(scaled)
    return [weight / total for weight in scaled]


@frozen
class SourceWeights:
    """Weights of the sources at the root, learnt from committed tokens.

    Sources that had a distribution share their weight by how probable the tokens were under each;
    the others keep theirs ("specialists", Freund et al. 1997).

    Attributes:
        logs: Log weight of each source.
    """

    logs: tuple[float, ...]

    @classmethod
    def even(cls, sources: int) -> "SourceWeights":
        """Equal weights."""
        return cls((0.0,) * sources)

    def learn(self, probs: Sequence[float | None]) -> "SourceWeights":
        """The weights after a token.

        Args:
            probs: The token's probability under each source; None without a distribution.
        """
        scores = {
            i: math.log(max(MIN_PROBABILITY, p)) for i, p in enumerate(probs) if p is not None
        }
        if len(scores) < 2:
            return self
        total = sum(math.exp(self.logs[i]) for i in scores)
        mean = sum(math.exp(self.logs[i] + score) for i, score in scores.items()) / total
        return SourceWeights(
            tuple(
                DECAY * (log + scores[i] - math.log(mean)) if i in scores else log
                for i, log in enumerate(self.logs)
            )
        )

    def normalised(self) -> list[float]:
        """Weights that sum to one."""
        largest = max(self.logs)
        weights = [math.exp(log - largest) for log in self.logs]
        return [weight / sum(weights) for weight in weights]
