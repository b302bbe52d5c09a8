"""What a round costs in virtual time, from times measured once."""

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
from draftwood.plugins.controllers.roofline.probing import Probe
from draftwood.plugins.controllers.roofline.table import Table
from studies.budget.recording import Parts, Text

TYPICAL = 16
"""Draft nodes of the rounds whose stages are timed."""


@frozen(eq=False)
class Times:
    """Seconds. forwards: of the target. draft: of a proposal. grow: (nodes, seconds) of growing,
    read straight between sizes. other: of the rest of a round that drafts; plain: of one that does
    not. control: what a controller that adapts takes to decide and to learn."""

    forwards: Table
    draft: float
    grow: tuple[tuple[int, float], ...]
    other: float
    plain: float
    control: float = 0.0

    def growing(self, nodes: int) -> float:
        sizes, seconds = zip(*self.grow, strict=True)
        return float(np.interp(nodes, sizes, seconds))

    def drafted(self, grown: int, nodes: int, context: int) -> float:
        """A round that grows `grown` draft nodes and verifies `nodes` of them."""
        forward = float(self.forwards.seconds(nodes + 1, context))
        return self.draft + self.growing(grown) + forward + self.other

    def plain_step(self, context: int) -> float:
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


def quiet(seconds: Iterable[float]) -> float:
    """The lower quartile: noise only adds, and more than a quarter is seldom free of it."""
    found = sorted(seconds)
    return found[len(found) // 4] if found else 0.0


def stage_times(
    parts: Parts, requests: Sequence[Request], texts: Sequence[Text], probes: Sequence[Probe]
) -> Times:
    """Times of this machine. requests: decoded once with a fixed budget and once plainly, for what
    neither drafts nor verifies. texts: recorded ones, for drafting and growing. probes: timed
    forwards, of `calibrate`."""
    drafting = _rounds(parts, Fixed(FixedOptions(nodes=TYPICAL)), requests)
    plainly = _rounds(parts, Fixed(FixedOptions(nodes=0)), requests)
    return Times(
        Table.of(probes),
        quiet(seconds for text in texts for seconds in text.draft),
        _growing([text.grow for text in texts]),
        quiet(map(_rest, drafting)),
        quiet(map(_rest, plainly)),
    )


def _growing(timed: Sequence[Mapping[int, Sequence[float]]]) -> tuple[tuple[int, float], ...]:
    """Of each size; no tree takes longer than a larger one."""
    sizes = sorted({size for each in timed for size in each})
    found = [(n, quiet(s for each in timed for s in each.get(n, ()))) for n in sizes]
    seconds = np.minimum.accumulate([s for _, s in found][::-1])[::-1].tolist()
    return tuple(zip(sizes, seconds, strict=True)) or ((0, 0.0),)


def _rounds(
    parts: Parts, controller: BudgetController[Any, Any], requests: Sequence[Request]
) -> list[RoundStats]:
    engine = Engine(parts.target, parts.verifier, parts.drafter, parts.tree, controller)
    found = []
    for request in requests:
        run = engine.open(request)
        while run.finish_reason is None:
            (step,) = engine.step([run])
            if step.stats is not None:
                found.append(step.stats)
    return found


def _rest(stats: RoundStats) -> float:
    return stats.timings.judge + stats.timings.commit + stats.timings.other


def median(seconds: Sequence[float]) -> float:
    """0.0 of nothing."""
    return statistics.median(seconds) if seconds else 0.0
