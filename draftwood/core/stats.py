"""Statistics of a request: the totals of its rounds."""

from collections import Counter
from typing import Any

from attrs import define, field, fields

from draftwood.core.values import RoundStats, Timings

STAGES = tuple(stage.name for stage in fields(Timings))


@define
class RequestStats:
    """Totals of the rounds of one request. The prefill and its token are not a round.

    Attributes:
        rounds: Count.
        committed: Tokens that the rounds committed, after stop rules.
        accepted: Drafts among them.
        rejected: Rounds in which the accepted path ended although the tree went on.
        drafted: Rounds with a draft.
        budgets: Nodes verified, one entry per round.
        committed_per_round: One entry per round.
        reached: By depth, how many rounds could have accepted a draft that deep.
        taken: By depth, how many rounds did.
        near_ties: Decisions, the prefill's included, that rounding could have changed, if the
            verifier counts them.
        kernels: Launches by name in this request's steps.
        seconds: By stage, the prefill included.
    """

    rounds: int = 0
    committed: int = 0
    accepted: int = 0
    rejected: int = 0
    drafted: int = 0
    budgets: list[int] = field(factory=list)
    committed_per_round: list[int] = field(factory=list)
    reached: list[int] = field(factory=list)
    taken: list[int] = field(factory=list)
    near_ties: int = 0
    kernels: Counter[str] = field(factory=Counter)
    seconds: dict[str, float] = field(factory=lambda: dict.fromkeys(STAGES, 0.0))

    def add_time(self, timings: Timings) -> None:
        """Add the seconds of a round or of the prefill."""
        for stage in STAGES:
            self.seconds[stage] += getattr(timings, stage)

    def add(self, stats: RoundStats) -> None:
        """Add a round."""
        self.rounds += 1
        self.committed += stats.committed
        self.accepted += stats.accepted
        # A verified tree whose path ends at a node with children lost all of those children.
        self.rejected += stats.offered > stats.accepted
        self.drafted += stats.drafted
        self.budgets.append(stats.budget)
        self.committed_per_round.append(stats.committed)
        missing = max(0, stats.offered - len(self.reached))
        self.reached += [0] * missing
        self.taken += [0] * missing
        for depth in range(stats.offered):
            self.reached[depth] += 1
            self.taken[depth] += depth < stats.accepted
        self.add_time(stats.timings)

    @property
    def accepted_length(self) -> float | None:
        """tau: tokens committed per round, bonus included; None without rounds."""
        return self.committed / self.rounds if self.rounds else None

    @property
    def accepted_length_without_bonus(self) -> float | None:
        """Drafts committed per round; None without rounds."""
        return self.accepted / self.rounds if self.rounds else None

    @property
    def acceptance_by_depth(self) -> list[float]:
        """By depth 1, 2, ...: of the rounds that could accept so deep, the share that did."""
        return [taken / reached for taken, reached in zip(self.taken, self.reached, strict=True)]

    def as_dict(self) -> dict[str, Any]:
        """The fields that every JSON report shares."""
        budgets = self.budgets
        return {
            "rounds": self.rounds,
            "accepted": self.accepted,
            "rejected": self.rejected,
            "accepted_length": self.accepted_length,
            "accepted_length_without_bonus": self.accepted_length_without_bonus,
            "acceptance_by_depth": self.acceptance_by_depth,
            "budget": {
                "mean": sum(budgets) / len(budgets) if budgets else None,
                "min": min(budgets, default=None),
                "max": max(budgets, default=None),
            },
            "timings": dict(self.seconds),
            "kernels": dict(sorted(self.kernels.items())),
            "near_ties": self.near_ties,
        }
