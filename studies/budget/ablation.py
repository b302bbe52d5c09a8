"""Every policy on the same recorded rounds, and the tables that compare them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import asdict, evolve, frozen

from draftwood.bench.statistics import Ratio, speedup
from draftwood.core.tree import TokenTree
from draftwood.core.values import Verdict
from draftwood.plugins.controllers.measured import Measured
from draftwood.plugins.controllers.options import MeasuredOptions, RooflineOptions
from draftwood.plugins.controllers.roofline import Roofline
from draftwood.plugins.controllers.roofline.acceptance import AcceptanceEstimate
from draftwood.plugins.controllers.roofline.corrections import Corrections
from draftwood.plugins.controllers.roofline.cost_based import CostBasedController, RequestState
from draftwood.plugins.controllers.roofline.cost_model import CostModel
from draftwood.plugins.controllers.roofline.roof import Roof
from studies.budget.recording import SIZES, RecordedText
from studies.budget.times import Times, median
from studies.budget.walking import ControllerWalk, TreeKind, Walk, walk_fixed, walk_oracle
from studies.command_line import markdown_table

BASTION = "bastion"
FIXED = tuple(f"fixed-{size}" for size in SIZES)
ADAPTIVE = (BASTION, "measured", "roofs-alone", "own-temperature", "uncalibrated")

MEANING = {
    "plain": "no draft: the fixed budget 0",
    "fixed-N": "N draft nodes a round",
    "random-N": "a random tree of N nodes over the same proposal",
    "beam-N": "the same number of best paths on each level, N nodes in total",
    BASTION: "the roofline controller: two roofs, residuals and drift, learnt acceptance",
    "measured": "the same decisions on the table that virtual time is read from",
    "roofs-alone": "the same on the two fitted roofs, without residuals or drift",
    "own-temperature": "bastion on trees scored at the request's temperature, however low",
    "uncalibrated": "bastion on the drafter's scores without correction by acceptance",
    "oracle": "the budgets with the least time for each text, given what is accepted",
}
COLUMNS = (
    "policy",
    "tokens/round",
    "budget",
    "ms/token",
    "times plain",
    "times best fixed",
    "(95%)",
)


@frozen(eq=False)
class Comparison:
    """One prompt set at one temperature.

    Attributes:
        prompts: Name of the prompt set.
        temperature: Of the target.
        walks: {policy: one walk per text}.
    """

    prompts: str
    temperature: float
    walks: Mapping[str, Sequence[Walk]]

    @property
    def best_fixed(self) -> str:
        """The fixed budget, or plain decoding, with the least time over all texts, in hindsight."""
        return min(("plain", *FIXED), key=lambda name: seconds(self.walks[name]))


def cost_models(roof: Roof, residuals: Sequence[float], times: Times) -> dict[str, CostModel]:
    """The cost model that each adaptive policy starts with.

    Args:
        roof: Fitted to the forwards of `times`.
        residuals: Fitted as well, one per knot.
        times: Of this machine.
    """
    models = dict.fromkeys(ADAPTIVE, CostModel(roof, Corrections(tuple(residuals)), source="store"))
    models["measured"] = CostModel(times.forwards, source="store")
    models["roofs-alone"] = CostModel(_UncorrectedRoof(roof.compute, roof.memory))
    return models


def controllers(options: RooflineOptions) -> dict[str, CostBasedController]:
    """The controller of each adaptive policy."""
    options = evolve(options, clock="wall")
    roofline = Roofline(options)
    by_policy: dict[str, CostBasedController] = dict.fromkeys(ADAPTIVE, roofline)
    by_policy["measured"] = Measured(MeasuredOptions(options.max_nodes, options.objective))
    by_policy["uncalibrated"] = _Uncalibrated(options)
    return by_policy


def control_seconds(
    texts: Sequence[RecordedText], times: Times, model: CostModel, options: RooflineOptions
) -> float:
    """Median seconds of bastion's decisions per round, timed on these texts."""
    policy = ControllerWalk(controllers(options)[BASTION], model, times)
    for text in texts:
        policy.walk(text)
    return median(policy.control_seconds)


def walk_policies(
    prompts: str,
    temperature: float,
    texts: Sequence[RecordedText],
    times: Times,
    models: Mapping[str, CostModel],
    options: RooflineOptions,
) -> Comparison:
    """Every policy on the same texts; each adaptive one starts with its own cost model."""
    walks = {"plain": [walk_fixed(text, times, 0) for text in texts]}
    for shape in ("fixed", "beam", "random"):
        kind = "tree" if shape == "fixed" else shape
        for size in SIZES:
            walks[f"{shape}-{size}"] = [walk_fixed(text, times, size, kind) for text in texts]
    for name, controller in controllers(options).items():
        tree: TreeKind = "own" if name == "own-temperature" else "tree"
        policy = ControllerWalk(controller, models[name], times, tree)
        walks[name] = [policy.walk(text) for text in texts]
    walks["oracle"] = [walk_oracle(text, times) for text in texts]
    return Comparison(prompts, temperature, walks)


def report(comparisons: Sequence[Comparison], seed: int) -> dict[str, Any]:
    """JSON values: each comparison, and bastion against each single policy over all of them."""
    bastion = [walk for each in comparisons for walk in each.walks[BASTION]]
    best_fixed = [walk for each in comparisons for walk in each.walks[each.best_fixed]]
    return {
        "cells": [
            {
                "prompts": each.prompts,
                "temperature": each.temperature,
                "texts": len(each.walks["plain"]),
                "best_fixed": each.best_fixed,
                "policies": {name: _numbers(each, name, seed) for name in each.walks},
            }
            for each in comparisons
        ],
        "overall": {
            "bastion_over_best_fixed_of_each": asdict(_speed_ratio(bastion, best_fixed, seed)),
            "bastion_over": {
                name: asdict(
                    _speed_ratio(
                        bastion, [walk for each in comparisons for walk in each.walks[name]], seed
                    )
                )
                for name in ("plain", *FIXED, *ADAPTIVE[1:], "oracle")
            },
        },
        "policies": MEANING,
    }


def markdown(found: Mapping[str, Any], pipeline: str) -> str:
    """A table per comparison, and the speed of bastion over all of them."""
    parts = [f"## Budgets of {pipeline}, in virtual time\n"]
    for each in found["cells"]:
        title = f"{each['prompts']}, temperature {each['temperature']:g}, {each['texts']} prompts"
        rows = [_row(name, numbers) for name, numbers in each["policies"].items()]
        parts.append(f"### {title}\n\n{markdown_table(COLUMNS, rows)}\n")
    overall = found["overall"]
    rows = [
        ("the best fixed of each table", *_interval(overall["bastion_over_best_fixed_of_each"]))
    ]
    rows += [(name, *_interval(ratio)) for name, ratio in overall["bastion_over"].items()]
    columns = ("bastion over, all tables together", "times as fast", "(95%)")
    parts.append(f"### Together\n\n{markdown_table(columns, rows)}\n")
    parts.append(conclusion(overall) + "\n")
    parts.append(
        "\n".join(f"- `{name}`: {text}" for name, text in found["policies"].items()) + "\n"
    )
    return "\n".join(parts) + "\n"


def conclusion(overall: Mapping[str, Any]) -> str:
    """Bastion against the best fixed budget of each table, and against each single budget."""
    regret = overall["bastion_over_best_fixed_of_each"]
    near = "within" if regret["value"] >= 0.97 else "not within"
    singles = {name: overall["bastion_over"][name] for name in ("plain", *FIXED)}
    name, closest = min(singles.items(), key=lambda item: item[1]["value"])
    if closest["value"] >= 1.0:
        against = f"faster than any single fixed budget ({name} is the next)"
    elif closest["high"] is not None and closest["high"] >= 1.0:
        against = f"behind {name}, but within the interval"
    else:
        against = f"slower than {name} for everything"
    return (
        f"Bastion is {near} 3% of the fixed budget that happens to be best for each table "
        f"({regret['value']:.3f} of its speed), and {against} ({closest['value']:.3f})."
    )


def seconds(walks: Sequence[Walk]) -> float:
    """Total virtual time."""
    return sum(walk.seconds for walk in walks)


def _numbers(each: Comparison, name: str, seed: int) -> dict[str, Any]:
    walks = each.walks[name]
    tokens, rounds = sum(walk.tokens for walk in walks), sum(len(walk.budgets) for walk in walks)
    return {
        "tokens": tokens,
        "rounds": rounds,
        "seconds": seconds(walks),
        "tokens_per_round": tokens / rounds,
        "budget": sum(sum(walk.budgets) for walk in walks) / rounds,
        "ms_per_token": 1e3 * seconds(walks) / tokens,
        "over_plain": asdict(_speed_ratio(walks, each.walks["plain"], seed)),
        "over_best_fixed": asdict(_speed_ratio(walks, each.walks[each.best_fixed], seed)),
    }


def _speed_ratio(ours: Sequence[Walk], theirs: Sequence[Walk], seed: int) -> Ratio:
    """Speed of ours over theirs, with its interval over texts."""
    if ours == theirs:
        return Ratio(1.0, None, None)
    pairs = [[(walk.tokens, walk.seconds) for walk in side] for side in (ours, theirs)]
    return speedup(pairs[0], pairs[1], seed)


def _row(name: str, numbers: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        name,
        f"{numbers['tokens_per_round']:.2f}",
        f"{numbers['budget']:.1f}",
        f"{numbers['ms_per_token']:.3f}",
        f"{numbers['over_plain']['value']:.3f}",
        *_interval(numbers["over_best_fixed"]),
    )


def _interval(ratio: Mapping[str, Any]) -> Iterator[str]:
    yield f"{ratio['value']:.3f}"
    yield "-" if ratio["low"] is None else f"{ratio['low']:.3f}-{ratio['high']:.3f}"


class _UncorrectedRoof(Roof):
    """Two roofs that round times do not correct."""

    correctable = False


class _NoCorrection(AcceptanceEstimate):
    """The drafter's scores without correction."""

    def learn(self, tree: TokenTree, verdict: Verdict) -> "AcceptanceEstimate":
        return self

    def scaled(self, share: float) -> "AcceptanceEstimate":
        return self

    def log_factors(self, depth: int) -> list[float]:
        return [0.0] * depth


class _Uncalibrated(Roofline):
    """A roofline controller that does not correct scores by acceptance."""

    def open(self) -> RequestState:
        return RequestState(acceptance=_NoCorrection())
