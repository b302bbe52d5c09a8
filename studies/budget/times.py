"""The virtual time of a round, from times measured once."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import frozen

from draftwood.core.engine import Engine, Request
from draftwood.core.interfaces import BudgetController
from draftwood.core.values import RoundStats
from draftwood.plugins.controllers.fixed import Fixed
from draftwood.plugins.controllers.options import FixedOptions
from draftwood.plugins.controllers.roofline.forward_table import ForwardTable
from draftwood.plugins.controllers.roofline.measuring import Probe
from studies.budget.recording import Parts, RecordedText

TIMED_BUDGET = 16
"""Draft nodes of the rounds whose stages are timed."""


@frozen(eq=False)
class Times:
    """Seconds of each stage.

    Attributes:
        forwards: Of the target.
        draft: Of a proposal.
        grow: (nodes, seconds) of growing, interpolated linearly between sizes.
        other: The rest of a round with a draft.
        plain: The rest of a round without a draft.
        control: Decisions and learning of an adaptive controller.
    """

    forwards: ForwardTable
    draft: float
    grow: tuple[tuple[int, float], ...]
    other: float
    plain: float
    control: float = 0.0

    def growing(self, nodes: int) -> float:
        """Seconds of growing a tree of `nodes`."""
        sizes, seconds = zip(*self.grow, strict=True)
        return float(np.interp(nodes, sizes, seconds))

    def drafted(self, grown: int, nodes: int, context: int) -> float:
        """Seconds of a round that grows `grown` draft nodes and verifies `nodes` of them."""
        forward = float(self.forwards.seconds(nodes + 1, context))
        return self.draft + self.growing(grown) + forward + self.other

    def plain_step(self, context: int) -> float:
        """Seconds of a round without a draft."""
        return float(self.forwards.seconds(1, context)) + self.plain

    def as_dict(self) -> dict[str, Any]:
        """JSON values, in milliseconds."""
        return {
            "draft": 1e3 * self.draft,
            "grow": {str(nodes): 1e3 * seconds for nodes, seconds in self.grow},
            "other": 1e3 * self.other,
            "other_plain": 1e3 * self.plain,
            "control": 1e3 * self.control,
            "forward": {
                f"{size} on {row.context}": 1e3 * seconds
                for row in self.forwards.rows
                for size, seconds in zip(row.sizes, row.seconds, strict=True)
            },
        }


def lower_quartile(seconds: Iterable[float]) -> float:
    """The lower quartile, since noise only adds time; 0.0 for no values."""
    ordered = sorted(seconds)
    return ordered[len(ordered) // 4] if ordered else 0.0


def stage_times(
    parts: Parts,
    requests: Sequence[Request],
    texts: Sequence[RecordedText],
    probes: Sequence[Probe],
) -> Times:
    """Times of this machine.

    Args:
        parts: The pipeline.
        requests: Decoded once with a fixed budget and once plainly, to time judging, committing
            and the rest.
        texts: Recorded texts, which have the times of drafting and growing.
        probes: Timed forwards of a calibration.
    """
    drafting = _rounds(parts, Fixed(FixedOptions(nodes=TIMED_BUDGET)), requests)
    plain = _rounds(parts, Fixed(FixedOptions(nodes=0)), requests)
    return Times(
        ForwardTable.of(probes),
        lower_quartile(seconds for text in texts for seconds in text.draft),
        _growing([text.grow for text in texts]),
        lower_quartile(map(_rest, drafting)),
        lower_quartile(map(_rest, plain)),
    )


def _growing(timed: Sequence[Mapping[int, Sequence[float]]]) -> tuple[tuple[int, float], ...]:
    """(nodes, seconds), made monotone: no tree takes longer than a larger one."""
    sizes = sorted({size for each in timed for size in each})
    quartiles = [lower_quartile(s for each in timed for s in each.get(n, ())) for n in sizes]
    seconds = np.minimum.accumulate(quartiles[::-1])[::-1].tolist()
    return tuple(zip(sizes, seconds, strict=True)) or ((0, 0.0),)


def _rounds(
    parts: Parts, controller: BudgetController[Any, Any], requests: Sequence[Request]
) -> list[RoundStats]:
    engine = Engine(parts.target, parts.verifier, parts.drafter, parts.tree, controller)
    rounds = []
    for request in requests:
        run = engine.open(request)
        while run.finish_reason is None:
            (step,) = engine.step([run])
            if step.stats is not None:
                rounds.append(step.stats)
    return rounds


def _rest(stats: RoundStats) -> float:
    """Seconds of a round that are neither drafting, growing nor verifying."""
    return stats.timings.judge + stats.timings.commit + stats.timings.other


def median(seconds: Sequence[float]) -> float:
    """The median; 0.0 for no values."""
    return statistics.median(seconds) if seconds else 0.0
