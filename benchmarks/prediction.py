"""The accuracy of predicted forward times: `python benchmarks/prediction.py`.

Three figures, as Markdown and as JSON (--out FILE):

1. The median absolute error at held-out (tokens, context), contexts up to 2048: after `calibrate`,
   and after the coarse probe of a first run with and without rounds of real decoding.
2. Rounds until that error is below 20% again when all times double. The rounds are real; their
   clock runs twice as fast from one round on.
3. The error of each round's forward before, during and after a load by other processes.

Held-out points are timed repeatedly in changing order together with the points that calibration
fits, and the fastest timing counts. Run it on an otherwise idle machine.
"""

import argparse
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import cycle
from pathlib import Path
from typing import Any

from attrs import frozen

from draftwood.bench.machine import machine
from draftwood.bench.prompts import load_prompts
from draftwood.core.build import load_pipeline
from draftwood.core.engine import Engine, Run
from draftwood.core.errors import UnsupportedTarget
from draftwood.core.generation import Pipeline
from draftwood.plugins.controllers.options import RooflineOptions
from draftwood.plugins.controllers.roofline import Roofline
from draftwood.plugins.controllers.roofline.calibration import CountedCosts, calibrate
from draftwood.plugins.controllers.roofline.cost_model import CostModel
from draftwood.plugins.controllers.roofline.measuring import CONTEXTS, Probe
from draftwood.plugins.controllers.roofline.probing import probe_machine

RECOVERED = 0.20
"""Error below which a changed machine counts as followed."""

TOKENS = 128
"""New tokens per prompt."""


class Dilated:
    """A clock that runs `factor` times as fast as `clock`, from the moment that it is set."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock, self._factor = clock, 1.0
        self._start = clock()
        self._passed = 0.0

    def __call__(self) -> float:
        return self._passed + self._factor * (self.clock() - self._start)

    @property
    def factor(self) -> float:
        return self._factor

    @factor.setter
    def factor(self, factor: float) -> None:
        now = self.clock()
        self._passed += self._factor * (now - self._start)
        self._start, self._factor = now, factor


@frozen
class RoundForward:
    """Predicted and measured seconds of a round's forward."""

    predicted: float
    measured: float

    @property
    def error(self) -> float:
        return abs(self.predicted / self.measured - 1.0)


class Rounds:
    """Rounds of real decoding, prompt after prompt, by an engine that learns its cost model."""

    def __init__(
        self,
        pipeline: Pipeline,
        costs: CostModel,
        prompts: Sequence[Any],
        clock: Callable[[], float],
    ) -> None:
        parts = pipeline.engine
        controller = Roofline(RooflineOptions())
        # A given cost model: nothing is measured or read from disk.
        controller.init = lambda probe: costs  # type: ignore[method-assign]
        self.pipeline = pipeline
        self.engine = Engine(
            parts.target, parts.verifier, parts.drafter, parts.tree, controller, clock
        )
        self._prompts = cycle(prompts)
        self._run: Run | None = None

    @property
    def costs(self) -> CostModel:
        model: CostModel = self.engine.machine
        return model

    def take(self, count: int) -> Iterator[RoundForward]:
        """`count` rounds, prefills left out."""
        while count:
            if self._run is None or self._run.finish_reason is not None:
                prompt = next(self._prompts).encode(self.pipeline.tokenizer)
                request = self.pipeline.request(prompt, max_new_tokens=TOKENS, seed=0)
                self._run = self.engine.open(request)
            before = self.costs
            (step,) = self.engine.step([self._run])
            if step.stats is None:
                continue
            count -= 1
            predicted = float(before.forward(step.stats.budget + 1, step.stats.context))
            yield RoundForward(predicted, step.stats.timings.verify)


def error(costs: CostModel, points: Sequence[Probe], factor: float = 1.0) -> float:
    """Median absolute relative error against `factor` times the measured seconds."""
    return statistics.median(
        abs(float(costs.forward(p.tokens, p.context)) / (factor * p.seconds) - 1.0) for p in points
    )


def rounds_to_recover(
    rounds: Rounds, clock: Dilated, points: Sequence[Probe], factor: float, most: int
) -> int | None:
    """Dilate the clock and count rounds until the error is below RECOVERED; None after `most`."""
    clock.factor = factor
    for number, _ in enumerate(rounds.take(most), 1):
        if error(rounds.costs, points, factor) < RECOVERED:
            return number
    return None


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep this number of processes multiplying matrices."""
    context = multiprocessing.get_context("spawn")
    started = [context.Process(target=_multiply, daemon=True) for _ in range(processes)]
    for process in started:
        process.start()
    time.sleep(3.0)  # while they import numpy
    try:
        yield
    finally:
        for process in started:
            process.terminate()
            process.join()


def _multiply() -> None:
    import numpy as np

    left = np.ones((512, 512))
    while True:
        left @ left


def measure(
    pipeline: Pipeline, prompts: Sequence[Any], *, rounds: int, repeats: int, processes: int
) -> dict[str, Any]:
    """All three figures."""
    target = pipeline.target
    costs: Any = target.costs(time.perf_counter)
    with suppress(UnsupportedTarget):  # then the closed form counts
        costs = CountedCosts(costs, target.traced_flops())
    coarse, probes = probe_machine(costs, time.perf_counter, RooflineOptions().probe_seconds)
    whole = calibrate(costs, repeats)
    seen = {(probe.tokens, probe.context) for probe in probes}
    points = [p for p in whole.held_out if (p.tokens, p.context) not in seen]

    after = Rounds(pipeline, coarse, prompts, time.perf_counter)
    list(after.take(rounds))
    clock = Dilated()
    slowed = Rounds(pipeline, whole.model, prompts, clock)
    list(slowed.take(rounds))
    before = error(slowed.costs, points)
    at_once = error(slowed.costs, points, 2.0)
    recovered = rounds_to_recover(slowed, clock, points, 2.0, 100)

    beside = Rounds(pipeline, whole.model, prompts, time.perf_counter)
    alone = list(beside.take(rounds))
    with busy(processes):
        among = list(beside.take(rounds))
    again = list(beside.take(rounds))
    return {
        "held_out": [[p.tokens, p.context, p.seconds] for p in points],
        "contexts": sorted({p.context for p in points}),
        "probed_contexts": list(CONTEXTS),
        "rounds": rounds,
        "calibrated": error(whole.model, points),
        "calibrated_roofs_alone": whole.quality()["roof_median"],
        "coarse": error(coarse, points),
        "coarse_after_rounds": error(after.costs, points),
        "doubled": {"before": before, "at_once": at_once, "rounds_to_recover": recovered},
        "busy": {
            "processes": processes,
            "alone": _window(alone),
            "first_ten": _window(among[:10]),
            "beside": _window(among[10:]),
            "after": _window(again[10:]),
        },
        "machine": machine(),
    }


def _window(rounds: Sequence[RoundForward]) -> dict[str, float]:
    return {
        "rounds": len(rounds),
        "error": statistics.median(each.error for each in rounds),
        "milliseconds": 1e3 * statistics.median(each.measured for each in rounds),
    }


def markdown(found: dict[str, Any]) -> str:
    """The figures as tables."""
    doubled, beside = found["doubled"], found["busy"]
    recovered = doubled["rounds_to_recover"]
    held = f"{len(found['held_out'])} points held out, contexts up to {max(found['contexts'])}"
    lines = [
        f"| cost model | median error on {held} |",
        "| --- | ---: |",
        f"| after `draftwood calibrate` | {found['calibrated']:.1%} |",
        f"| its two roofs alone | {found['calibrated_roofs_alone']:.1%} |",
        f"| after the coarse probe | {found['coarse']:.1%} |",
        f"| and {found['rounds']} rounds | {found['coarse_after_rounds']:.1%} |",
        "",
        "| every time doubles at once | |",
        "| --- | ---: |",
        f"| error before | {doubled['before']:.1%} |",
        f"| error at once | {doubled['at_once']:.1%} |",
        f"| rounds until it is below {RECOVERED:.0%} | {recovered or 'more than 100'} |",
        "",
        f"| {beside['processes']} busy processes beside it | rounds | forward, ms | error |",
        "| --- | ---: | ---: | ---: |",
    ]
    names = {
        "alone": "before they start",
        "first_ten": "the first rounds beside them",
        "beside": "beside them",
        "after": "after they ended (without the first rounds)",
    }
    for key, name in names.items():
        row = beside[key]
        lines.append(
            f"| {name} | {row['rounds']} | {row['milliseconds']:.2f} | {row['error']:.1%} |"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--pipeline", default="bastion", help="whose target, drafter and tree")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=5, help="timings of each point")
    parser.add_argument("--busy", type=int, default=2, help="processes beside it")
    parser.add_argument("--out", type=Path, help="write the figures there as JSON")
    given = parser.parse_args(arguments)
    if given.rounds < 11:
        parser.error("--rounds must be at least 11: the first ten are shown by themselves")
    # The nominal clock measures nothing while the pipeline loads.
    pipeline = load_pipeline(
        given.pipeline, ["controller.use=roofline", "controller.clock=nominal"]
    )
    prompts = load_prompts(["builtin:code"])
    found = measure(
        pipeline, prompts, rounds=given.rounds, repeats=given.repeats, processes=given.busy
    )
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(markdown(found))  # noqa: T201


if __name__ == "__main__":
    main()
