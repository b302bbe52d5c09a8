"""The verdict, from its evidence."""

from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

from attrs import field, frozen

if TYPE_CHECKING:
    from draftwood.core.generation import Generation
    from draftwood.testing.decisions import Decisions
    from draftwood.testing.lossless.distribution import Distribution
    from draftwood.testing.lossless.exact import Exact
    from draftwood.testing.lossless.parity import Parity


@frozen
class Speculation:
    """How far a check ran: a text without an accepted or without a rejected draft shows little.
    kernels: launches by name, of a verifier that brings its own."""

    rounds: int = 0
    accepted: int = 0
    rejected: int = 0
    kernels: Counter[str] = field(factory=Counter)

    @classmethod
    def of(cls, result: "Generation") -> "Speculation":
        stats = result.stats
        return cls(stats.rounds, stats.accepted, stats.rejected, stats.kernels)

    def __add__(self, other: "Speculation") -> "Speculation":
        return Speculation(
            self.rounds + other.rounds,
            self.accepted + other.accepted,
            self.rejected + other.rejected,
            self.kernels + other.kernels,
        )


@frozen
class Report:
    """What is known of one pipeline. speculates: whether it has a drafter. decisions: of its
    verifier beside the reference whose distribution was enumerated; None if it was its own."""

    exact: "Exact"
    parity: "tuple[Parity, ...]"
    distribution: "Distribution"
    speculates: bool
    decisions: "Decisions | None" = None

    @property
    def speculation(self) -> Speculation:
        return sum((each.speculation for each in self.parity), self.distribution.speculation)

    @property
    def doubts(self) -> list[str]:
        """Why the evidence is not enough, a sentence each."""
        doubts = []
        if self.exact.reason is not None:
            doubts.append(f"the exact distribution could not be enumerated: {self.exact.reason}")
        ran = self.speculation
        if self.decisions is not None and self.decisions.excused:
            doubts.append(
                f"the verifier calls {self.decisions.near_ties} of {self.decisions.cases} "
                f"decisions "
                "about small vocabularies near, where hardly any are"
            )
        if self.speculates and not (ran.accepted and ran.rejected):
            doubts.append(
                f"{ran.accepted} drafts were accepted and {ran.rejected} rounds ended at a "
                "rejected one; the model's own text was compared with little but itself"
            )
        return doubts

    @property
    def verdict(self) -> Literal["lossless", "biased", "inconclusive"]:
        differs = self.decisions is not None and self.decisions.biased
        wrong = self.exact.biased or self.distribution.biased or differs
        if wrong or any(each.biased for each in self.parity):
            return "biased"
        return "inconclusive" if self.doubts else "lossless"

    def as_dict(self) -> dict[str, Any]:
        ran = self.speculation
        return {
            "verdict": self.verdict,
            "doubts": self.doubts,
            "exact": self.exact.as_dict(),
            "decisions": None if self.decisions is None else self.decisions.as_dict(),
            "parity": {each.dtype: each.as_dict() for each in self.parity},
            "distribution": self.distribution.as_dict(),
            "rounds": ran.rounds,
            "accepted": ran.accepted,
            "rejected": ran.rejected,
            "kernels": dict(sorted(ran.kernels.items())),
        }
