"""How much each source of a union is believed, learnt from what the text then said."""

import math
from collections.abc import Sequence

from attrs import frozen

FLOOR = 0.02
"""Least probability that a source is held to have given a token: one miss must not end it."""

DECAY = 0.95
"""Weight of a round after the next one: about twenty are remembered."""


@frozen
class Trust:
    """Log weights of sources, by their place. Specialists that are silent at times (Freund et
    al. 1997): those that spoke share their weight anew by how well they did, and a silent one
    keeps its own."""

    logs: tuple[float, ...]

    @classmethod
    def even(cls, sources: int) -> "Trust":
        return cls((0.0,) * sources)

    def learn(self, given: Sequence[float | None]) -> "Trust":
        """given: the probability each source gave to the token that came, None if it was silent."""
        spoke = [i for i, p in enumerate(given) if p is not None]
        if len(spoke) < 2:
            return self
        scores = {i: math.log(max(FLOOR, given[i] or 0.0)) for i in spoke}
        total = sum(math.exp(self.logs[i]) for i in spoke)
        mean = sum(math.exp(self.logs[i] + scores[i]) for i in spoke) / total
        return Trust(
            tuple(
                DECAY * (log + scores[i] - math.log(mean)) if i in scores else log
                for i, log in enumerate(self.logs)
            )
        )

    def weights(self) -> list[float]:
        """Of all sources, summing to one."""
        largest = max(self.logs)
        raw = [math.exp(log - largest) for log in self.logs]
        return [weight / sum(raw) for weight in raw]
