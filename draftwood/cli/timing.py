"""Times several ways of decoding the same prompts side by side."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

from draftwood.bench.schedule import schedule

if TYPE_CHECKING:
    from draftwood.core.stats import RequestStats


@frozen
class Outcome:
    """One prompt decoded. stats: None where it was not draftwood that decoded."""

    tokens: tuple[int, ...]
    stats: "RequestStats | None" = None


Decoder = Callable[[Sequence[int]], Outcome]
"""Prompt ids to an outcome."""


@define
class Timed:
    """What one decoder did. seconds: one total over all prompts per repetition."""

    seconds: list[float] = field(factory=list)
    tokens: list[list[int]] = field(factory=list)
    accepted_length: float | None = None

    @property
    def tokens_per_second(self) -> float:
        """New tokens of all prompts by the median repetition."""
        return sum(map(len, self.tokens)) / statistics.median(self.seconds)

    def as_dict(self) -> dict[str, Any]:
        return {
            "seconds": self.seconds,
            "accepted_length": self.accepted_length,
            "tokens_per_second": self.tokens_per_second,
            "tokens": self.tokens,
        }


def side_by_side(
    decoders: Mapping[str, Decoder],
    prompts: Sequence[Sequence[int]],
    repetitions: int,
    *,
    clock: Callable[[], float] = time.perf_counter,
    progress: Callable[[str], object] = lambda name: None,
) -> dict[str, Timed]:
    """Each decoder on every prompt, `repetitions` times, interleaved as `schedule` says.

    progress: called with a name each time it has decoded a prompt.
    """
    timed = {name: Timed([0.0] * repetitions) for name in decoders}
    outcomes: dict[str, list[Outcome]] = {name: [] for name in decoders}
    for repetition, index, name in schedule(list(decoders), len(prompts), repetitions):
        start = clock()
        outcome = decoders[name](prompts[index])
        timed[name].seconds[repetition] += clock() - start
        outcomes[name].append(outcome)
        progress(name)
    for name, results in outcomes.items():
        timed[name].tokens = [list(outcome.tokens) for outcome in results[-len(prompts) :]]
        timed[name].accepted_length = _accepted_length(results[-len(prompts) :])
    return timed


def ratios(of: Timed, to: Timed) -> list[float]:
    """How many times faster `of` was, a repetition each."""
    return [theirs / ours for ours, theirs in zip(of.seconds, to.seconds, strict=True)]


def _accepted_length(outcomes: Sequence[Outcome]) -> float | None:
    """Tokens a round over all prompts, bonus included."""
    stats = [outcome.stats for outcome in outcomes if outcome.stats is not None]
    rounds = sum(each.rounds for each in stats)
    return sum(each.committed for each in stats) / rounds if rounds else None
