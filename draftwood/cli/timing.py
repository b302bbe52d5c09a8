"""Times several ways of decoding the same prompts side by side."""

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

import draftwood

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
    """Each decoder on every prompt, `repetitions` times, interleaved.

    A repetition runs every decoder once, each time beginning with another, so that what drifts
    (clock speed, temperature, other load) meets all of them alike and repetitions can be compared
    in pairs. progress: called with a name when its turn in a repetition is over.
    """
    timed = {name: Timed() for name in decoders}
    names = list(decoders)
    for repetition in range(repetitions):
        first = repetition % len(names)
        for name in (*names[first:], *names[:first]):
            start = clock()
            outcomes = [decoders[name](prompt) for prompt in prompts]
            timed[name].seconds.append(clock() - start)
            timed[name].tokens = [list(outcome.tokens) for outcome in outcomes]
            timed[name].accepted_length = _accepted_length(outcomes)
            progress(name)
    return timed


def ratios(of: Timed, to: Timed) -> list[float]:
    """How many times faster `of` was, a repetition each."""
    return [theirs / ours for ours, theirs in zip(of.seconds, to.seconds, strict=True)]


def machine() -> dict[str, Any]:
    """What the numbers hold for. Imports torch."""
    import torch

    return {
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "draftwood": draftwood.__version__,
    }


def _accepted_length(outcomes: Sequence[Outcome]) -> float | None:
    """Tokens a round over all prompts, bonus included."""
    stats = [outcome.stats for outcome in outcomes if outcome.stats is not None]
    rounds = sum(each.rounds for each in stats)
    return sum(each.committed for each in stats) / rounds if rounds else None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
