"""report.html: one page with the tables and figures. Nothing in it is fetched from anywhere."""

import base64
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from draftwood.bench.figures import STYLE as FIGURE_STYLE
from draftwood.bench.figures import Bar, Series, bars, lines, shares, steps
from draftwood.bench.records import Record
from draftwood.bench.reports.tables import (
    FORECAST,
    KERNELS,
    columns,
    forecasts,
    kernels,
    place,
    rows,
)
from draftwood.bench.roofs import chosen
from draftwood.bench.summary import OVERALL
from draftwood.core.stats import STAGES

STYLE = """
:root { color-scheme: light; }
body { margin: 0; background: #f6f7f9; color: #1f2328;
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.6rem; margin: 0 0 .3rem; letter-spacing: -.01em; }
h2 { font-size: 1.1rem; margin: 0 0 .2rem; }
p { margin: .2rem 0 .8rem; }
.quiet { color: #59636e; font-size: .88rem; }
code { font: .88em ui-monospace, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
section { background: #fff; border: 1px solid #dfe3e8; border-radius: 10px;
  padding: 1.1rem 1.3rem 1.2rem; margin: 1.2rem 0; }
.partial { border-color: #d4a72c; background: #fff8e5; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .36rem .6rem; text-align: right; white-space: nowrap; }
th { color: #59636e; font-weight: 500; font-size: .85rem; border-bottom: 1px solid #d0d7de; }
th:first-child, td:first-child { text-align: left; }
td { border-bottom: 1px solid #eef0f3; }
tr:last-child td { border-bottom: 0; }
td.no { color: #b3261e; font-weight: 600; }
.drawing { max-width: none; display: block; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1.2rem; margin: .6rem 0 0; }
dt { font: .85rem ui-monospace, Menlo, Consolas, monospace; }
dd { margin: 0; color: #3d444d; font-size: .9rem; }
@media (max-width: 40rem) { dl { grid-template-columns: 1fr; } dd { margin-bottom: .5rem; } }
"""


def page(report: Mapping[str, Any], records: Sequence[Record]) -> str:
    """The whole page: light, system fonts, no script, no reference to another file."""
    sections = [
        _partial(report),
        _table(report, OVERALL, "All prompts" if len(report["groups"]) > 1 else "Results"),
        _speedups(report),
        _depths(report),
        _budgets(report, records),
        _times(report),
        *_rooflines(report),
        _forecasts(report),
        _kernels(report),
        *(_table(report, g, g) for g in report["groups"] if len(report["groups"]) > 1),
        *_drawings(records),
        _details(report),
    ]
    title = "draftwood benchmark"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # A browser that keeps to this fetches nothing, and says so if something wanted it to.
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'; img-src data:\">\n"
        # Browsers ask the server for an icon unless a page has one.
        '<link rel="icon" href="data:,">\n'
        f"<title>{title}</title>\n<style>{STYLE}{FIGURE_STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{title}</h1>\n<p><code>{escape(report['command'])}</code></p>\n"
        f'<p class="quiet">{escape(place(report))}</p>\n'
        + "\n".join(filter(None, sections))
        + "\n</main>\n</body>\n</html>\n"
    )


def _section(title: str, note: str, body: str, kind: str = "") -> str:
    said = f'<p class="quiet">{escape(note)}</p>' if note else ""
    attribute = f' class="{kind}"' if kind else ""
    return f"<section{attribute}><h2>{escape(title)}</h2>{said}{body}</section>"


def _partial(report: Mapping[str, Any]) -> str:
    if not report["partial"]:
        return ""
    note = (
        f"{report['done']} of {report['planned']} requests had finished. The same command goes on."
    )
    return _section("A partial report", note, "", "partial")


def _table(report: Mapping[str, Any], group: str, title: str) -> str:
    return _section(title, "", _html_table(columns(report), rows(report, group)))


def _forecasts(report: Mapping[str, Any]) -> str:
    found = forecasts(report)
    note = (
        "Of controllers that predict: the median error of a round's time, tokens a round, and the "
        "budget beside the best one up to it, known what was accepted."
    )
    table = _html_table(FORECAST, found)
    return _section("What controllers expected", note, table) if found else ""


def _kernels(report: Mapping[str, Any]) -> str:
    found = kernels(report)
    note = "Of verifiers that bring kernels of their own: how often each was launched."
    return _section("Kernels that ran", note, _html_table(KERNELS, found)) if found else ""


def _html_table(columns: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Texts that are not plain decoding's ("3 of 4") stand out."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    lines = []
    for row in body:
        *cells, last = (escape(cell) for cell in row)
        mark = ' class="no"' if " of " in last else ""
        tds = "".join(f"<td>{cell}</td>" for cell in cells)
        lines.append(f"<tr>{tds}<td{mark}>{last}</td></tr>")
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(lines)}</table></div>'


def _overall(report: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {name: results[OVERALL] for name, results in report["results"].items()}


def _kind(report: Mapping[str, Any], name: str) -> str:
    kind: str = report["contestants"][name]["kind"]
    return kind


def _speedups(report: Mapping[str, Any]) -> str:
    found = [
        Bar(
            name,
            numbers["speedup_over_plain"]["value"],
            numbers["speedup_over_plain"]["low"],
            numbers["speedup_over_plain"]["high"],
            muted=_kind(report, name) == "baseline",
        )
        for name, numbers in _overall(report).items()
        if numbers["speedup_over_plain"] and _kind(report, name) != "plain"
    ]
    if not found:
        return ""
    note = (
        "Tokens per second over those of plain decoding by the same engine (dashed), with the 95% "
        "interval over prompts. Grey: Hugging Face's own decoding."
    )
    return _section("Speedup", note, bars(found, "times plain decoding", 1.0))


def _depths(report: Mapping[str, Any]) -> str:
    colours = _colours(report)
    found = [
        Series(name, [(r["depth"], r["share"]) for r in numbers["acceptance_by_depth"]], colour)
        for name, numbers in _overall(report).items()
        if (colour := colours.get(name)) is not None and numbers["acceptance_by_depth"]
    ]
    if not found:
        return ""
    note = "Of the rounds whose accepted path could go this deep in the tree, the share that did."
    return _section("Acceptance by depth", note, lines(found, "depth", "share accepted", 1.0))


def _budgets(report: Mapping[str, Any], records: Sequence[Record]) -> str:
    colours = _colours(report)
    first = report["prompts"][0]["id"]
    shown = [
        record
        for record in records
        if record.prompt == first
        and record.repetition == 0
        and record.contestant in colours
        and record.rounds
    ]
    found = [
        Series(r.contestant, list(enumerate(r.rounds.budget)), colours[r.contestant])
        for r in sorted(shown, key=lambda record: colours[record.contestant])
        if r.rounds
    ]
    if not found:
        return ""
    note = f"Draft nodes verified in each round of prompt {first}, first repetition."
    return _section("Budget over time", note, steps(found, "round", "nodes verified"))


def _times(report: Mapping[str, Any]) -> str:
    found = {
        name: {
            stage: 1000 * numbers["timings"][stage]["seconds"] / numbers["tokens"]
            for stage in STAGES
        }
        for name, numbers in _overall(report).items()
        if numbers["timings"] and numbers["tokens"]
    }
    if not found:
        return ""
    note = "Milliseconds per new token by stage, over all requests; other is what no stage claims."
    return _section("Where the time goes", note, shares(found, "ms per token"))


def _rooflines(report: Mapping[str, Any]) -> list[str]:
    """One for each pipeline whose controller prices forwards by two roofs."""
    colours = _colours(report)
    return [
        _section(
            f"Forwards that {name} chose",
            f"Milliseconds of a target's forward over its tokens, on {roofline['context']} tokens "
            "of context: both fitted roofs (dashed), what the controller expected at the end "
            "(line), and the median of the rounds of each size (dots, larger for more rounds).",
            chosen(roofline, colours.get(name, 0)),
        )
        for name, roofline in report["rooflines"].items()
    ]


def _drawings(records: Sequence[Record]) -> list[str]:
    """The largest tree that was drawn: it shows most of what a tree is."""
    drawn = [record for record in records if record.drawing]
    if not drawn:
        return []
    record = max(drawn, key=lambda record: (record.drawing or "").count("<rect"))
    assert record.drawing
    # As an image, since the drawing brings a style of its own.
    data = base64.b64encode(record.drawing.encode()).decode()
    note = (
        f"A round of {record.contestant} on prompt {record.prompt}: each node with its path score, "
        "the accepted path in green, ending in the target's own token."
    )
    image = f'<img class="drawing" alt="a draft tree" src="data:image/svg+xml;base64,{data}">'
    return [_section("A tree", note, f'<div class="wide">{image}</div>')]


def _details(report: Mapping[str, Any]) -> str:
    terms = {**report["formulas"], **{k: str(v) for k, v in report["machine"].items()}}
    items = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in terms.items())
    return _section("How it is counted, and on what", "", f"<dl>{items}</dl>")


def _colours(report: Mapping[str, Any]) -> dict[str, int]:
    """Of the pipelines that speculate: the same in every figure."""
    names = [name for name in report["results"] if _kind(report, name) == "pipeline"]
    return {name: index for index, name in enumerate(names)}
