"""Statistics of a request, from the stats of its rounds."""

from collections import Counter
from typing import Any

from attrs import define, field

from draftwood.core.values import RoundStats, Timings

STAGES = ("prefill", "draft", "grow", "verify", "judge", "commit", "other")


@define
class RequestStats:
    """What the rounds of one request add up to. The prefill's token is not a round's.

    rounds: count. committed: tokens the rounds committed, after stop rules. accepted: of which
    drafts. budgets: nodes verified, a round each. reached, taken: by depth, how often the accepted
    path could have gone that deep in the tree, and how often it did. near_ties: decisions, the
    prefill's included, that rounding could have changed, as far as the verifier counts them.
    kernels: launches by name while this request was stepped, of a verifier that brings its own."""

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
        for stage in STAGES:
            self.seconds[stage] += getattr(timings, stage)

    def add(self, stats: RoundStats) -> None:
        self.rounds += 1
        self.committed += stats.committed
        self.accepted += stats.accepted
        # A verified tree whose path ends at a node with children lost all of those children.
        self.rejected += stats.offered > stats.accepted
        self.drafted += stats.drafted
        self.budgets.append(stats.budget)
        self.committed_per_round.append(stats.committed)
        while len(self.reached) < stats.offered:
            self.reached.append(0)
            self.taken.append(0)
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
        """For depth 1, 2, ...: of the rounds whose path could go there, the share that did."""
        return [taken / reached for taken, reached in zip(self.taken, self.reached, strict=True)]

    def as_dict(self) -> dict[str, Any]:
        """The fields every JSON report shares."""
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
