"""One request decoded by a pipeline, with everything that a report wants to know about it."""

from collections.abc import Callable, Sequence
from typing import Any

from attrs import frozen

from draftwood.bench.records import Rounds
from draftwood.core.generation import Pipeline
from draftwood.core.interfaces import BudgetController, ControllerState
from draftwood.core.values import RoundStats


@frozen(eq=False)
class Decoded:
    """As in `records.Record`; stats: of the rounds, for drawing; none kept for others' loops."""

    tokens: tuple[int, ...]
    seconds: float
    first_seconds: float
    first_tokens: int
    finish_reason: str | None = None
    timings: dict[str, float] | None = None
    rounds: Rounds | None = None
    speculation: dict[str, Any] | None = None
    kernels: dict[str, int] | None = None
    near_ties: int | None = None
    stats: tuple[RoundStats, ...] = ()


Seen = tuple[ControllerState[Any, Any] | None, RoundStats]


def decode(
    pipeline: Pipeline, prompt: Sequence[int], seed: int, clock: Callable[[], float]
) -> Decoded:
    """Step one request of `pipeline` to its end. clock: seconds, for the wall time.

    What the controller predicted is worked out afterwards, from the state it had before each
    round: asking it costs no time that is measured.
    """
    engine = pipeline.engine
    run = engine.open(pipeline.request(prompt, seed=seed))
    seen: list[Seen] = []
    start = first = clock()
    while run.finish_reason is None:
        state = None
        if engine.controller is not None:
            state = ControllerState(engine.machine, run.controller_state)
        (step,) = engine.step([run])
        if step.stats is None:
            first = clock()
        else:
            seen.append((state, step.stats))
    end = clock()
    return Decoded(
        tokens=tuple(run.new_ids),
        seconds=end - start,
        first_seconds=first - start,
        first_tokens=min(1, len(run.new_ids)),
        finish_reason=run.finish_reason,
        timings=dict(run.stats.seconds),
        rounds=_rounds(engine.controller, seen),
        speculation=pipeline.speculation(run),
        kernels=dict(run.stats.kernels),
        near_ties=run.stats.near_ties,
        stats=tuple(stats for _, stats in seen),
    )


def _rounds(controller: BudgetController[Any, Any] | None, seen: Sequence[Seen]) -> Rounds:
    rounds = Rounds()
    for state, stats in seen:
        rounds.committed.append(stats.committed)
        rounds.accepted.append(stats.accepted)
        rounds.offered.append(stats.offered)
        rounds.grown.append(stats.grown)
        rounds.budget.append(stats.budget)
        rounds.drafted.append(stats.drafted)
        rounds.passes.append(stats.passes)
        rounds.seconds.append(stats.timings.total)
        rounds.forward.append(stats.timings.verify)
        forecast = None
        if controller is not None and state is not None:
            forecast = controller.forecast(stats, state)
        if forecast is None:
            rounds.expected_tokens.append(None)
            rounds.expected_seconds.append(None)
            rounds.best.append(None)
            continue
        rounds.expected_tokens.append(forecast.tokens[-1])
        rounds.expected_seconds.append(forecast.seconds[-1])
        rounds.best.append(best_in_hindsight(stats, forecast.seconds))
    return rounds


def best_in_hindsight(stats: RoundStats, seconds: Sequence[float]) -> int:
    """The budget up to the verified one with most tokens per second, known what was accepted.

    seconds: (N+1,) of a round by its budget. Growth order makes a smaller budget's accepted path
    the part of this one that lies in it: a budget of n commits the accepted nodes up to n and a
    bonus. The smallest of equal ones.
    """
    path = stats.verdict.accepted[1 : 1 + stats.accepted]
    candidates = (0, *path)
    return max(candidates, key=lambda n: (1 + sum(node <= n for node in path)) / seconds[n])
