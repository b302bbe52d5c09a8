"""The verdict, from its evidence."""

from typing import Any, Literal

from attrs import frozen

from draftwood.testing.decisions import DecisionEvidence
from draftwood.testing.lossless.distribution import DistributionEvidence
from draftwood.testing.lossless.exact import ExactEvidence
from draftwood.testing.lossless.parity import ParityEvidence
from draftwood.testing.lossless.speculation import Speculation


@frozen
class Report:
    """All evidence about one pipeline.

    Attributes:
        exact: Of toy pipelines, by enumeration.
        parity: Of greedy text, by dtype.
        distribution: Of sampled text.
        speculates: Whether the pipeline has a drafter.
        decisions: Of its verifier beside the reference that was enumerated instead; None for a
            verifier that was enumerated itself.
        seeded: Of sampled text beside plain decoding's with the same seeds; None for a verifier
            that does not declare seed_parity.
    """

    exact: ExactEvidence
    parity: tuple[ParityEvidence, ...]
    distribution: DistributionEvidence
    speculates: bool
    decisions: DecisionEvidence | None = None
    seeded: ParityEvidence | None = None

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
        if self.decisions is not None and self.decisions.too_many_near_ties:
            doubts.append(
                f"the verifier reports near ties in {self.decisions.near_ties} of "
                f"{self.decisions.cases} decisions about small vocabularies, where they are rare"
            )
        if self.speculates and not (ran.accepted and ran.rejected):
            doubts.append(
                f"{ran.accepted} drafts were accepted and {ran.rejected} rounds ended at a "
                "rejected one, so the comparison with plain decoding shows little"
            )
        return doubts

    @property
    def verdict(self) -> Literal["lossless", "biased", "inconclusive"]:
        evidence = (self.exact, self.distribution, self.decisions, self.seeded, *self.parity)
        if any(each is not None and each.biased for each in evidence):
            return "biased"
        return "inconclusive" if self.doubts else "lossless"

    def as_dict(self) -> dict[str, Any]:
        """The value of `draftwood lossless --json`."""
        ran = self.speculation
        return {
            "verdict": self.verdict,
            "doubts": self.doubts,
            "exact": self.exact.as_dict(),
            "decisions": None if self.decisions is None else self.decisions.as_dict(),
            "parity": {each.dtype: each.as_dict() for each in self.parity},
            "seeded": None if self.seeded is None else self.seeded.as_dict(),
            "distribution": self.distribution.as_dict(),
            "rounds": ran.rounds,
            "accepted": ran.accepted,
            "rejected": ran.rejected,
            "kernels": dict(sorted(ran.kernels.items())),
        }
