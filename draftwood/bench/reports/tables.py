"""The tables of a report: for a terminal, for Markdown, for the page, and flat for CSV."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, select_autoescape

from draftwood.bench.summary import OVERALL
from draftwood.core.stats import STAGES

TEMPLATES = Environment(
    loader=PackageLoader("draftwood.bench"),
    autoescape=select_autoescape(),
    keep_trailing_newline=True,
)

COLUMNS = (
    "pipeline",
    "tokens/s",
    "times plain",
    "(95%)",
    "times HF",
    "ms/token",
    "tokens/round",
    "budget",
    "same text",
)


FORECAST = (
    "pipeline",
    "rounds",
    "error of seconds",
    "tokens expected",
    "tokens committed",
    "budget chosen",
    "best in hindsight",
)


KERNELS = ("pipeline", "kernel", "launches", "a round")


def columns(report: Mapping[str, Any]) -> tuple[str, ...]:
    """COLUMNS, with two more before the last one where there is a reference."""
    reference = report["reference"]
    if reference is None:
        return COLUMNS
    return (*COLUMNS[:-1], f"times {reference}", "(95%)", COLUMNS[-1])


def rows(report: Mapping[str, Any], group: str = OVERALL) -> list[tuple[str, ...]]:
    """A row per contestant under `columns`; - where there is no number."""
    body = []
    for name, results in report["results"].items():
        *cells, last = _row(name, results[group])
        if report["reference"] is not None:
            ratio = results[group]["speedup_over_reference"]
            cells += [f"{ratio['value']:.2f}" if ratio else "-", interval(ratio)]
        body.append((*cells, last))
    return body


def forecasts(report: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A row under FORECAST per pipeline whose controller predicts."""
    return [
        (
            name,
            str(forecast["rounds"]),
            f"{forecast['seconds_error']:.1%}",
            f"{forecast['expected_tokens']:.2f}",
            f"{forecast['committed_tokens']:.2f}",
            f"{forecast['chosen_budget']:.1f}",
            f"{forecast['best_budget']:.1f}",
        )
        for name, results in report["results"].items()
        if (forecast := results[OVERALL]["forecast"])
    ]


def kernels(report: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A row under KERNELS per pipeline and kernel that it launched."""
    return [
        (name, kernel, str(ran["launches"]), f"{ran['per_round']:.1f}")
        for name, results in report["results"].items()
        for kernel, ran in results[OVERALL]["kernels"].items()
    ]


def _row(name: str, numbers: Mapping[str, Any]) -> tuple[str, ...]:
    plain, hf = numbers["speedup_over_plain"], numbers["speedup_over_hf"]
    length, budget, times = (numbers[k] for k in ("accepted_length", "budget", "ms_per_token"))
    speed = numbers["tokens_per_second"]
    return (
        name,
        f"{speed['value']:.1f}" if speed else "-",
        f"{plain['value']:.2f}" if plain else "-",
        interval(plain),
        f"{hf['value']:.2f}" if hf else "-",
        f"{times['median']:.2f}" if times else "-",
        f"{length['pooled']:.2f}" if length else "-",
        f"{budget['mean']:.1f}" if budget else "-",
        same(numbers["same_tokens"]),
    )


def interval(ratio: Mapping[str, Any] | None) -> str:
    """low-high, or - where there is none."""
    if ratio is None or ratio["low"] is None:
        return "-"
    return f"{ratio['low']:.2f}-{ratio['high']:.2f}"


def same(tokens: Mapping[str, Any]) -> str:
    """Whether texts equal plain decoding's; if not, how many do, and the largest margin."""
    if not tokens["compared"]:
        return "-"
    differ = tokens["compared"] - tokens["same"]
    if not differ:
        return "yes"
    if not tokens["promised"]:
        return "by distribution"
    margin = tokens["largest_margin"]
    suffix = "" if margin is None else f", margin {margin:.1g}"
    return f"{tokens['same']} of {tokens['compared']}{suffix}"


Table = tuple[str, str, Sequence[str], Sequence[Sequence[str]]]
"""Title, note, columns and rows."""


def tables(report: Mapping[str, Any]) -> list[Table]:
    """All prompts first, then each group of prompts, forecasts and kernels."""
    names = report["groups"] if len(report["groups"]) > 1 else []
    titles = {OVERALL: "All prompts" if names else "Results", **{name: name for name in names}}
    head = columns(report)
    return [
        *((title, "", head, rows(report, group)) for group, title in titles.items()),
        (
            "What controllers expected",
            "For controllers that predict: the median error of a round's time, tokens a round, and "
            "the budget beside the best one up to it, given what was accepted.",
            FORECAST,
            forecasts(report),
        ),
        ("Kernels that ran", "How often each kernel was launched.", KERNELS, kernels(report)),
    ]


def markdown(report: Mapping[str, Any]) -> str:
    """report.md: every table, what it was measured on, and how it is counted."""
    return TEMPLATES.get_template("report.md").render(
        report=report,
        place=place(report),
        tables=[(title, head, body) for title, _, head, body in tables(report)],
    )


def place(report: Mapping[str, Any]) -> str:
    """What was measured on which machine, in one line."""
    machine = report["machine"]
    device = machine["accelerator"] or machine["processor"]
    prompts, repeat = len(report["prompts"]), report["repeat"]

    def counted(count: int, noun: str) -> str:
        return f"{count} {noun}{'' if count == 1 else 's'}"

    return (
        f"{device}, {counted(machine['threads'], 'thread')}, torch {machine['torch']}, "
        f"transformers {machine['transformers']}, draftwood {machine['draftwood']}; "
        f"{counted(prompts, 'prompt')}, {counted(repeat, 'repetition')}, seed {report['seed']}"
    )


def csv_table(report: Mapping[str, Any]) -> str:
    """report.csv: a line per contestant and group, numbers unrounded."""
    lines = [
        {"contestant": name, "group": group, **dict(_flat(numbers))}
        for name, results in report["results"].items()
        for group, numbers in results.items()
    ]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def _flat(numbers: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key in ("requests", "tokens", "passes", "peak_memory", "near_ties"):
        yield key, numbers[key]
    ratios = (
        "tokens_per_second",
        "speedup_over_plain",
        "speedup_over_hf",
        "speedup_over_reference",
    )
    for key in ratios:
        yield from _columns(key, numbers[key], ("value", "low", "high"))
    for key in ("ms_per_token", "speedup_by_prompt"):
        yield from _columns(key, numbers[key], ("median", "low", "high"))
    lengths = ("pooled", "pooled_without_bonus", "by_request", "by_request_without_bonus")
    yield from _columns("accepted_length", numbers["accepted_length"], lengths)
    yield from _columns("budget", numbers["budget"], ("mean", "max"))
    timings = numbers["timings"]
    for stage in STAGES:
        yield f"seconds_{stage}", timings and timings[stage]["seconds"]
    yield from _columns("tokens", numbers["same_tokens"], ("compared", "same", "largest_margin"))
    forecast = ("seconds_error", "expected_tokens", "committed_tokens", "best_budget")
    yield from _columns("forecast", numbers["forecast"], forecast)


def _columns(
    key: str, value: Mapping[str, Any] | None, names: tuple[str, ...]
) -> Iterator[tuple[str, Any]]:
    for name in names:
        yield key if name == "value" else f"{key}_{name}", value and value[name]
