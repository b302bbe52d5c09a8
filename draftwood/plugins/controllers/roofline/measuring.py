"""Timed forwards of the target, as many as a time limit allows."""

import math
from collections.abc import Callable, Sequence

from attrs import frozen

from draftwood.core.errors import DraftwoodError
from draftwood.core.interfaces.controller import CostProbe

SIZES = (1, 2, 4, 8, 9, 16, 17, 32, 33, 64, 65, 128)
CONTEXTS = (64, 1024)
REPEATS = 5


@frozen
class Probe:
    """One timed forward: `seconds` for `tokens` tree nodes on `context` committed tokens."""

    tokens: int
    context: int
    seconds: float


def time_forwards(costs: CostProbe, clock: Callable[[], float], end: float) -> list[Probe]:
    """Time each size up to REPEATS times before `end` and keep the fastest timing of each.

    A running forward cannot be interrupted, so one starts only if it is expected to end in time:
    it may take twice as long as the forward before it, which had at least half its size, and its
    warm-up as long again. Sizes and contexts that exceed the target's limit are skipped.
    """
    sizes = [size for size in costs.sizes if size <= SIZES[-1]] or SIZES
    plan = [(size, CONTEXTS[0]) for size in sizes]
    plan += [(size, CONTEXTS[1]) for size in sizes[::3]]
    fastest: dict[tuple[int, int], float] = {}
    elapsed, last = 0.0, dict.fromkeys(plan, 0.0)
    for repeat in range(REPEATS):
        for point in plan:
            expected = last[point] if repeat else 2.0 * elapsed
            start = clock()
            if start + expected > end:
                return [Probe(*at, seconds) for at, seconds in fastest.items()]
            try:
                seconds = costs.seconds(*point)
            except DraftwoodError:
                plan = [kept for kept in plan if kept != point]
                continue
            elapsed = last[point] = clock() - start
            if seconds > 0.0:
                fastest[point] = min(seconds, fastest.get(point, math.inf))
    return [Probe(*at, seconds) for at, seconds in fastest.items()]


def monotone(probes: Sequence[Probe]) -> list[Probe]:
    """Lower each time to the least of any larger forward at its context: noise only adds time."""

    def least(probe: Probe) -> float:
        return min(
            other.seconds
            for other in probes
            if other.context == probe.context and other.tokens >= probe.tokens
        )

    return [Probe(probe.tokens, probe.context, least(probe)) for probe in probes]
