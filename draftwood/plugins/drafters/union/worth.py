"""Whether sources that run a model are worth asking, given what the others already promise."""

from bisect import bisect
from collections.abc import Callable, Sequence

from attrs import evolve, frozen

from draftwood.core.proposals import best_first_search, path_table

NODES = 12
"""Paths over which promises are compared: about what a round verifies on slow machines, where a
pass is dearest."""

EDGES = (1.25, 1.75, 2.5, 3.5, 5.0)
"""Promises, in committed tokens, between which what asking adds is learnt apart."""

RATE = 0.3
"""Weight of the latest round in what asking adds."""

AGAIN = 12
"""Rounds of one band without asking after which it is asked once more: text changes its mind."""

_BANDS = len(EDGES) + 1


@frozen
class Surplus:
    """What asking all sources added to a round, in tokens, by what the free ones promised.

    means: per band of promises, None before it was seen. skipped: rounds since, per band.
    """

    means: tuple[float | None, ...] = (None,) * _BANDS
    skipped: tuple[int, ...] = (0,) * _BANDS

    def pays(self, promise: float, price: float) -> bool:
        """Whether asking is expected to add more than `price` tokens; where nothing is known, or
        not for long, it is to be found out."""
        band = bisect(EDGES, promise)
        added = self._expected(band)
        return added is None or self.skipped[band] >= AGAIN or added > price

    def after_skip(self, promise: float) -> "Surplus":
        return evolve(self, skipped=_with(self.skipped, bisect(EDGES, promise), 1))

    def learn(self, promise: float, added: float) -> "Surplus":
        """After a round in which all were asked."""
        band = bisect(EDGES, promise)
        known = self.means[band]
        mean = added if known is None else known + RATE * (added - known)
        means = (*self.means[:band], mean, *self.means[band + 1 :])
        return Surplus(means, _with(self.skipped, band, -self.skipped[band]))

    def _expected(self, band: int) -> float | None:
        """Of the nearest band seen that promises no more: the more is promised, the less is left
        to add. None if there is none, as a band that promises more says nothing of this one."""
        seen = (mean for mean in reversed(self.means[: band + 1]) if mean is not None)
        return next(seen, None)


def promised(
    following: Callable[[tuple[int, ...]], Sequence[tuple[int, float]]], depth: int, nodes: int
) -> float:
    """Tokens that a round is expected to commit over the `nodes` likeliest paths of at most
    `depth` tokens, the bonus included.

    following: (token, log chance) of what may follow a path, best first.
    """
    tree = best_first_search(0, path_table(following, depth, nodes), nodes, depth)
    assert tree is not None, "a table of as many tokens as there are nodes leaves none out"
    return float(tree.expected_tokens()[-1])


def _with(counts: tuple[int, ...], place: int, change: int) -> tuple[int, ...]:
    return (*counts[:place], counts[place] + change, *counts[place + 1 :])
