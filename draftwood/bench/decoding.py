"""One request decoded by a pipeline, with everything that a report needs."""

from collections.abc import Callable, Sequence
from typing import Any

from attrs import frozen

from draftwood.bench.records import RoundColumns
from draftwood.core.generation import Pipeline
from draftwood.core.interfaces import BudgetController, ControllerState
from draftwood.core.values import RoundStats


@frozen(eq=False)
class Decoded:
    """Fields as in `records.RequestRecord`; stats: of the rounds, for drawing."""

    tokens: tuple[int, ...]
    seconds: float
    first_seconds: float
    first_tokens: int
    finish_reason: str | None = None
    timings: dict[str, float] | None = None
    rounds: RoundColumns | None = None
    speculation: dict[str, Any] | None = None
    kernels: dict[str, int] | None = None
    near_ties: int | None = None
    stats: tuple[RoundStats, ...] = ()


ObservedRound = tuple[ControllerState[Any, Any] | None, RoundStats]


def decode(
    pipeline: Pipeline, prompt: Sequence[int], seed: int, clock: Callable[[], float]
) -> Decoded:
    """Step one request of `pipeline` to its end.

    The controller's forecasts are computed afterwards, from its state before each round, so that
    they cost no measured time.

    Args:
        pipeline: To decode with.
        prompt: Token ids.
        seed: Of the request.
        clock: Seconds, for the wall time.
    """
    engine = pipeline.engine
    run = engine.open(pipeline.request(prompt, seed=seed))
    observed: list[ObservedRound] = []
    start = first = clock()
    while run.finish_reason is None:
        state = None
        if engine.controller is not None:
            state = ControllerState(engine.machine, run.controller_state)
        (step,) = engine.step([run])
        if step.stats is None:
            first = clock()
        else:
            observed.append((state, step.stats))
    end = clock()
    return Decoded(
        tokens=tuple(run.new_ids),
        seconds=end - start,
        first_seconds=first - start,
        first_tokens=min(1, len(run.new_ids)),
        finish_reason=run.finish_reason,
        timings=dict(run.stats.seconds),
        rounds=_rounds(engine.controller, observed),
        speculation=pipeline.speculation(run),
        kernels=dict(run.stats.kernels),
        near_ties=run.stats.near_ties,
        stats=tuple(stats for _, stats in observed),
    )


def _rounds(
    controller: BudgetController[Any, Any] | None, observed: Sequence[ObservedRound]
) -> RoundColumns:
    rounds = [stats for _, stats in observed]
    forecasts = [
        None if controller is None or state is None else controller.forecast(stats, state)
        for state, stats in observed
    ]
    names = ("committed", "accepted", "offered", "grown", "budget", "drafted", "passes")
    return RoundColumns(
        **{name: [getattr(stats, name) for stats in rounds] for name in names},
        seconds=[stats.timings.total for stats in rounds],
        forward=[stats.timings.verify for stats in rounds],
        expected_tokens=[each.tokens[-1] if each else None for each in forecasts],
        expected_seconds=[each.seconds[-1] if each else None for each in forecasts],
        best=[
            best_in_hindsight(stats, each.seconds) if each else None
            for stats, each in zip(rounds, forecasts, strict=True)
        ],
    )


def best_in_hindsight(stats: RoundStats, seconds: Sequence[float]) -> int:
    """The budget up to the verified one with most tokens per second, given what was accepted.

    Nodes are in growth order, so a budget of n commits the accepted nodes up to n and a bonus. Of
    equal budgets it is the smallest.

    Args:
        stats: Of the round.
        seconds: (N+1,) of a round by its budget.
    """
    path = stats.verdict.accepted[1 : 1 + stats.accepted]
    candidates = (0, *path)
    return max(candidates, key=lambda n: (1 + sum(node <= n for node in path)) / seconds[n])
