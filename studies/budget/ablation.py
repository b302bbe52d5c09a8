"""The tables of `draftwood ablate budget`: every policy on the same recorded rounds."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import asdict, evolve, frozen

from draftwood.bench.statistics import Ratio, speedup
from draftwood.core.tree import TokenTree
from draftwood.core.values import Verdict
from draftwood.plugins.controllers.measured import Measured
from draftwood.plugins.controllers.options import MeasuredOptions, RooflineOptions
from draftwood.plugins.controllers.roofline import Roofline
from draftwood.plugins.controllers.roofline.acceptance import Acceptance
from draftwood.plugins.controllers.roofline.controller import BestBudget
from draftwood.plugins.controllers.roofline.controller import Text as Learnt
from draftwood.plugins.controllers.roofline.prices import KNOTS, Prices, Roof
from studies.budget.recording import SIZES, Text
from studies.budget.times import Times, median
from studies.budget.walking import Adaptive, Kind, Walk, fixed, oracle

BASTION = "bastion"
FIXED = tuple(f"fixed-{size}" for size in SIZES)
ADAPTIVE = (BASTION, "measured", "roofs-alone", "own-temperature", "uncalibrated")

MEANING = {
    "plain": "no draft: the fixed budget 0",
    "fixed-N": "N draft nodes a round",
    "random-N": "a random tree of N nodes of the same proposal",
    "beam-N": "the same number of best paths on each level, N nodes in all",
    BASTION: "the roofline controller: two roofs, residuals and drift, acceptance learnt",
    "measured": "the same decision on the table that virtual time is read from",
    "roofs-alone": "the same on the two fitted roofs, without residuals or drift",
    "own-temperature": "bastion on trees scored at the request's temperature, however low",
    "uncalibrated": "bastion that believes the drafter's scores as they are",
    "oracle": "the budgets that take least time for each text, known what is accepted",
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
class Cell:
    """One prompt set at one temperature. walks: {policy: one of each text}."""

    prompts: str
    temperature: float
    walks: Mapping[str, Sequence[Walk]]

    @property
    def best_fixed(self) -> str:
        """The fixed budget that took least time, plain decoding included, known all texts."""
        return min(("plain", *FIXED), key=lambda name: seconds(self.walks[name]))


def machines(roof: Roof, residuals: Sequence[float], times: Times) -> dict[str, Prices]:
    """What each adaptive policy knows of the machine at first. roof, residuals: fitted to the
    forwards of `times`."""
    fitted = Prices(roof, tuple(residuals), source="store")
    known = dict.fromkeys(ADAPTIVE, fitted)
    known["measured"] = Prices(times.forwards, source="store")
    known["roofs-alone"] = Prices(_Alone(roof.compute, roof.memory), (0.0,) * len(KNOTS))
    return known


def controllers(options: RooflineOptions) -> dict[str, BestBudget]:
    """Of each adaptive policy."""
    options = evolve(options, clock="wall")
    roofline = Roofline(options)
    found: dict[str, BestBudget] = dict.fromkeys(ADAPTIVE, roofline)
    found["measured"] = Measured(MeasuredOptions(options.max_nodes, options.objective))
    found["uncalibrated"] = _Trusting(options)
    return found


def control_seconds(
    texts: Sequence[Text], times: Times, machine: Prices, options: RooflineOptions
) -> float:
    """What bastion's decisions take a round, timed on these texts."""
    policy = Adaptive(controllers(options)[BASTION], machine, times)
    for text in texts:
        policy.walk(text)
    return median(policy.spent)


def cell(
    prompts: str,
    temperature: float,
    texts: Sequence[Text],
    times: Times,
    known: Mapping[str, Prices],
    options: RooflineOptions,
) -> Cell:
    """Every policy on the same texts, each adaptive one learning the machine from its own start."""
    walks = {"plain": [fixed(text, times, 0) for text in texts]}
    for shape in ("fixed", "beam", "random"):
        kind = "tree" if shape == "fixed" else shape
        for size in SIZES:
            walks[f"{shape}-{size}"] = [fixed(text, times, size, kind) for text in texts]
    for name, controller in controllers(options).items():
        tree: Kind = "own" if name == "own-temperature" else "tree"
        policy = Adaptive(controller, known[name], times, tree)
        walks[name] = [policy.walk(text) for text in texts]
    walks["oracle"] = [oracle(text, times) for text in texts]
    return Cell(prompts, temperature, walks)


def report(cells: Sequence[Cell], seed: int) -> dict[str, Any]:
    """JSON values: each cell, and bastion against each single fixed budget over all cells."""
    return {
        "cells": [
            {
                "prompts": each.prompts,
                "temperature": each.temperature,
                "texts": len(each.walks["plain"]),
                "best_fixed": each.best_fixed,
                "policies": {name: _numbers(each, name, seed) for name in each.walks},
            }
            for each in cells
        ],
        "overall": {
            "bastion_over_best_fixed_of_each": asdict(
                _faster(
                    [walk for each in cells for walk in each.walks[BASTION]],
                    [walk for each in cells for walk in each.walks[each.best_fixed]],
                    seed,
                )
            ),
            "bastion_over": {
                name: asdict(
                    _faster(
                        [walk for each in cells for walk in each.walks[BASTION]],
                        [walk for each in cells for walk in each.walks[name]],
                        seed,
                    )
                )
                for name in ("plain", *FIXED, *ADAPTIVE[1:], "oracle")
            },
        },
        "policies": MEANING,
    }


def markdown(found: Mapping[str, Any], pipeline: str) -> str:
    """A table per cell, and what bastion is worth over all of them."""
    parts = [f"## Budgets of {pipeline}, in virtual time\n"]
    for each in found["cells"]:
        title = f"{each['prompts']}, temperature {each['temperature']:g}, {each['texts']} prompts"
        rows = [_row(name, numbers) for name, numbers in each["policies"].items()]
        parts.append(f"### {title}\n\n{table(COLUMNS, rows)}\n")
    overall = found["overall"]
    rows = [
        ("the best fixed of each table", *_interval(overall["bastion_over_best_fixed_of_each"]))
    ]
    rows += [(name, *_interval(ratio)) for name, ratio in overall["bastion_over"].items()]
    columns = ("bastion over, all tables together", "times as fast", "(95%)")
    parts.append(f"### Together\n\n{table(columns, rows)}\n")
    parts.append(said(overall) + "\n")
    parts.append(
        "\n".join(f"- `{name}`: {text}" for name, text in found["policies"].items()) + "\n"
    )
    return "\n".join(parts) + "\n"


def said(overall: Mapping[str, Any]) -> str:
    """The two questions, answered."""
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


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = ("---", *["---:"] * (len(columns) - 1))
    return "\n".join(f"| {' | '.join(line)} |" for line in (columns, rule, *rows))


def seconds(walks: Sequence[Walk]) -> float:
    return sum(walk.seconds for walk in walks)


def _numbers(each: Cell, name: str, seed: int) -> dict[str, Any]:
    walks = each.walks[name]
    tokens, rounds = sum(walk.tokens for walk in walks), sum(len(walk.budgets) for walk in walks)
    return {
        "tokens": tokens,
        "rounds": rounds,
        "seconds": seconds(walks),
        "tokens_per_round": tokens / rounds,
        "budget": sum(sum(walk.budgets) for walk in walks) / rounds,
        "ms_per_token": 1e3 * seconds(walks) / tokens,
        "over_plain": asdict(_faster(walks, each.walks["plain"], seed)),
        "over_best_fixed": asdict(_faster(walks, each.walks[each.best_fixed], seed)),
    }


def _faster(ours: Sequence[Walk], theirs: Sequence[Walk], seed: int) -> Ratio:
    """How many times as fast, with its interval over texts."""
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


class _Alone(Roof):
    """Two roofs that nothing is learnt over."""

    corrected = False


class _Unlearnt(Acceptance):
    """The drafter's scores as they are."""

    def learn(self, tree: TokenTree, verdict: Verdict) -> "Acceptance":
        return self

    def forget(self, share: float) -> "Acceptance":
        return self

    def factors(self, depth: int) -> list[float]:
        return [0.0] * depth


class _Trusting(Roofline):
    """A roofline controller that never learns how far a text bears the drafter out."""

    def open(self) -> Learnt:
        return Learnt(acceptance=_Unlearnt())
