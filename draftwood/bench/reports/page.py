"""report.html: one page with the tables and figures, which refers to no other file."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import field, frozen

from draftwood.bench.figures import Bar, Series, bars, lines, shares, steps
from draftwood.bench.records import RequestRecord
from draftwood.bench.reports.tables import TEMPLATES, place, tables
from draftwood.bench.roofline_figures import verified_sizes_svg
from draftwood.bench.summary import OVERALL
from draftwood.core.stats import STAGES


@frozen
class Section:
    """One box of the page: a title, a note, and what it shows.

    Attributes:
        title: Its heading.
        note: What it shows.
        columns: Of a table.
        rows: Of a table.
        figure: SVG.
        image: An SVG in base64, which brings its own style.
        terms: Names and their explanations.
        kind: Its class in the style sheet.
    """

    title: str
    note: str = ""
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    figure: str = ""
    image: str = ""
    terms: Mapping[str, Any] = field(factory=dict)
    kind: str = ""


def page(report: Mapping[str, Any], records: Sequence[RequestRecord]) -> str:
    """The whole page: light or dark as the reader's system is, system fonts, no script."""
    first, *rest = (Section(*table) for table in tables(report))
    sections = [
        *_partial(report),
        first,
        *_speedups(report),
        *_depths(report),
        *_budgets(report, records),
        *_times(report),
        *_rooflines(report),
        *(section for section in rest if section.rows),
        *_drawings(records),
        Section(
            "How it is counted, and on what", terms={**report["formulas"], **report["machine"]}
        ),
    ]
    return TEMPLATES.get_template("report.html").render(
        command=report["command"], place=place(report), sections=sections
    )


def _partial(report: Mapping[str, Any]) -> list[Section]:
    if not report["partial"]:
        return []
    note = (
        f"{report['done']} of {report['planned']} requests had finished. "
        "The same command continues."
    )
    return [Section("A partial report", note, kind="partial")]


def _overall(report: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {name: results[OVERALL] for name, results in report["results"].items()}


def _speedups(report: Mapping[str, Any]) -> list[Section]:
    kinds = {name: contestant["kind"] for name, contestant in report["contestants"].items()}
    shown = [
        Bar(
            name,
            speedup["value"],
            speedup["low"],
            speedup["high"],
            muted=kinds[name] == "baseline",
        )
        for name, numbers in _overall(report).items()
        if (speedup := numbers["speedup_over_plain"]) and kinds[name] != "plain"
    ]
    if not shown:
        return []
    note = (
        "Tokens per second over those of plain decoding by the same engine (dashed), with the 95% "
        "interval over prompts. Grey: Hugging Face's own decoding."
    )
    return [Section("Speedup", note, figure=bars(shown, "times plain decoding", 1.0))]


def _depths(report: Mapping[str, Any]) -> list[Section]:
    results = _overall(report)
    shown = [
        Series(name, [(row["depth"], row["share"]) for row in depths], colour)
        for name, colour in _colours(report).items()
        if (depths := results[name]["acceptance_by_depth"])
    ]
    if not shown:
        return []
    note = (
        "Share of the rounds whose tree allowed this depth that accepted a draft there; in "
        "brackets how many rounds that were."
    )
    deepest = max(len(results[series.name]["acceptance_by_depth"]) for series in shown)
    columns = ("pipeline", *(f"depth {depth}" for depth in range(1, deepest + 1)))
    rows = []
    for series in shown:
        depths = results[series.name]["acceptance_by_depth"]
        cells = [f"{row['share']:.2f} ({row['rounds']})" for row in depths]
        rows.append((series.name, *cells, *["-"] * (deepest - len(cells))))
    figure = lines(shown, "depth", "share accepted", 1.0)
    return [Section("Acceptance by depth", note, columns, rows, figure)]


def _budgets(report: Mapping[str, Any], records: Sequence[RequestRecord]) -> list[Section]:
    prompt = report["prompts"][0]["id"]
    by_key = {record.key: record for record in records}
    shown = [
        Series(name, list(enumerate(record.rounds.budget)), colour)
        for name, colour in _colours(report).items()
        if (record := by_key.get((name, prompt, 0))) and record.rounds
    ]
    if not shown:
        return []
    note = f"Draft nodes verified in each round of prompt {prompt}, first repetition."
    return [Section("Budget over time", note, figure=steps(shown, "round", "nodes verified"))]


def _times(report: Mapping[str, Any]) -> list[Section]:
    shown = {
        name: {
            stage: 1000 * numbers["timings"][stage]["seconds"] / numbers["tokens"]
            for stage in STAGES
        }
        for name, numbers in _overall(report).items()
        if numbers["timings"] and numbers["tokens"]
    }
    if not shown:
        return []
    note = "Milliseconds per new token by stage, over all requests; other: outside all stages."
    return [Section("Where the time goes", note, figure=shares(shown, "ms per token"))]


def _rooflines(report: Mapping[str, Any]) -> list[Section]:
    """One for each pipeline whose controller prices forwards by two roofs."""
    colours = _colours(report)
    return [
        Section(
            f"Forwards that {name} chose",
            f"Milliseconds of a target's forward over its tokens, on {roofline['context']} tokens "
            "of context: both fitted roofs (dashed), what the controller expected at the end "
            "(line), and the median of the rounds of each size (dots, larger for more rounds).",
            figure=verified_sizes_svg(roofline, colours.get(name, 0)),
        )
        for name, roofline in report["rooflines"].items()
    ]


def _drawings(records: Sequence[RequestRecord]) -> list[Section]:
    """The largest tree that was drawn."""
    drawn = [record for record in records if record.drawing]
    if not drawn:
        return []
    record = max(drawn, key=lambda record: (record.drawing or "").count("<rect"))
    assert record.drawing
    note = (
        f"A round of {record.contestant} on prompt {record.prompt}: each node with its path score, "
        "the accepted path in green, ending in the target's own token."
    )
    return [Section("A tree", note, image=base64.b64encode(record.drawing.encode()).decode())]


def _colours(report: Mapping[str, Any]) -> dict[str, int]:
    """Colours of the pipelines that speculate, the same in every figure."""
    contestants = report["contestants"]
    names = [name for name in report["results"] if contestants[name]["kind"] == "pipeline"]
    return {name: index for index, name in enumerate(names)}
