"""Whether sources that run a model add enough to a round to pay for their forward passes."""

from bisect import bisect
from typing import TypeVar

from attrs import evolve, frozen

from draftwood.core.proposals import best_first_search, path_table
from draftwood.core.proposals.table import Following

T = TypeVar("T")

COMPARED_NODES = 12
"""Tree nodes over which expected tokens are compared: about the budget of a slow machine, where a
forward pass costs most."""

BAND_EDGES = (1.25, 1.75, 2.5, 3.5, 5.0)
"""Edges, in expected tokens of the look-ups alone, between bands that have a gain of their own."""

LEARNING_RATE = 0.3
"""Weight of the latest round in the mean gain."""

REPROBE_ROUNDS = 12
"""Skipped rounds of one band after which the sources are run again, since text changes."""

_BANDS = len(BAND_EDGES) + 1


@frozen
class MarginalGain:
    """Expected tokens that model sources add to a round, by what the look-ups alone expect.

    Attributes:
        means: Mean gain of each band; None before its first measurement.
        skipped: Skipped rounds of each band since its last measurement.
    """

    means: tuple[float | None, ...] = (None,) * _BANDS
    skipped: tuple[int, ...] = (0,) * _BANDS

    def pays(self, base: float, price: float) -> bool:
        """Whether to run the model sources: if they are expected to add more than `price` tokens,
        if nothing is known of it, or if they were skipped for `REPROBE_ROUNDS` rounds.

        Args:
            base: Expected tokens of the look-ups alone.
            price: Tokens that the forward passes must add.
        """
        band = bisect(BAND_EDGES, base)
        # A band without a mean takes that of the nearest lower band: the more the look-ups expect,
        # the less there is to add. A higher band gives no bound.
        known = (mean for mean in reversed(self.means[: band + 1]) if mean is not None)
        gain = next(known, None)
        return gain is None or self.skipped[band] >= REPROBE_ROUNDS or gain > price

    def after_skip(self, base: float) -> "MarginalGain":
        """The state after a round in which the model sources were skipped."""
        band = bisect(BAND_EDGES, base)
        return evolve(self, skipped=_replace(self.skipped, band, self.skipped[band] + 1))

    def learn(self, base: float, gain: float) -> "MarginalGain":
        """The state after a round in which all sources ran."""
        band = bisect(BAND_EDGES, base)
        old = self.means[band]
        mean = gain if old is None else old + LEARNING_RATE * (gain - old)
        return MarginalGain(_replace(self.means, band, mean), _replace(self.skipped, band, 0))


def expected_tokens(following: Following, depth: int, nodes: int) -> float:
    """Tokens that a round with the best tree of `nodes` nodes commits, the bonus included."""
    tree = best_first_search(0, path_table(following, depth, nodes), nodes, depth)
    assert tree is not None, "rows of as many tokens as there are nodes leave none out"
    return float(tree.expected_tokens()[-1])


def _replace(values: tuple[T, ...], index: int, value: T) -> tuple[T, ...]:
    return (*values[:index], value, *values[index + 1 :])
