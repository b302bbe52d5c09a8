"""How much a check speculated."""

from collections import Counter

from attrs import field, frozen

from draftwood.core.generation import Generation


@frozen
class Speculation:
    """Counts of rounds: a text without an accepted or a rejected draft shows little.

    Attributes:
        rounds: Rounds decoded.
        accepted: Draft tokens accepted in them.
        rejected: Rounds that ended at a rejected draft token.
        kernels: Launches by name, where kernels ran.
    """

    rounds: int = 0
    accepted: int = 0
    rejected: int = 0
    kernels: Counter[str] = field(factory=Counter)

    @classmethod
    def of(cls, result: Generation) -> "Speculation":
        stats = result.stats
        return cls(stats.rounds, stats.accepted, stats.rejected, stats.kernels)

    def __add__(self, other: "Speculation") -> "Speculation":
        return Speculation(
            self.rounds + other.rounds,
            self.accepted + other.accepted,
            self.rejected + other.rejected,
            self.kernels + other.kernels,
        )
