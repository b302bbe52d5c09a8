"""Reports: every form says the same numbers, and the page stands alone."""

import base64
import csv
import io
import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET

import pytest
from attrs import evolve

from draftwood.bench import reports
from draftwood.bench.comparing import TextDifference, differences
from draftwood.bench.figures import Bar, Series, bars, lines, shares, steps
from draftwood.bench.journal import Journal
from draftwood.bench.machine import machine
from draftwood.bench.measuring import Plan, measure
from draftwood.bench.reports.tables import (
    COLUMNS,
    FORECAST,
    columns,
    forecasts,
    kernels,
    rows,
    same,
)
from draftwood.bench.summary import FORMULAS, summarise
from draftwood.cli.bench import JSON
from draftwood.cli.drawing import svg

from .conftest import PROMPTS


@pytest.fixture
def measured(lined_up):
    """(plan, records) of two pipelines beside plain decoding."""
    plan, journal = Plan(lined_up("one", "two"), PROMPTS, repeat=2), Journal(None, {})
    list(measure(plan, journal, draw=lambda stats, decode: svg([stats], decode, "a <round>")))
    return plan, journal.records


def report_of(plan, records, differ=()):
    return summarise(plan, records, differ, machine=machine(), command="draftwood bench one two")


@pytest.fixture
def report(measured):
    return report_of(*measured, differences(*measured))


def test_the_report_has_the_documented_keys(report):
    keys = {key.split(".")[-1] for key in JSON}
    numbers = report["results"]["one"]["overall"]
    top = {
        *("partial", "command", "contestants", "results", "rooflines", "differences"),
        "formulas",
    }
    assert top <= set(report)
    assert keys - top <= set(numbers)
    assert set(report["results"]["one"]) == {"overall", "easy", "hard"}
    assert {key.partition(".")[0] for key in FORMULAS} - {"interval"} <= set(numbers)
    json.dumps(report, allow_nan=False)


def test_numbers_are_what_their_formulas_say(measured, report):
    _, records = measured
    mine = [record for key, record in records.items() if key[0] == "two"]
    plain = [record for key, record in records.items() if key[0] == "plain"]
    numbers = report["results"]["two"]["overall"]
    tokens, seconds = sum(len(r.tokens) for r in mine), sum(r.seconds for r in mine)
    assert numbers["requests"] == len(PROMPTS) * 2
    assert numbers["tokens_per_second"]["value"] == pytest.approx(tokens / seconds)
    speedup = sum(r.seconds for r in plain) / seconds  # all texts are equally long
    assert numbers["speedup_over_plain"]["value"] == pytest.approx(speedup)
    rounds = sum(len(r.rounds) for r in mine)
    length = numbers["accepted_length"]
    assert length["pooled"] == pytest.approx((tokens - len(mine)) / rounds)
    assert length["pooled"] > length["pooled_without_bonus"] > length["pooled"] - 1.001
    by_request = sum(11 / len(r.rounds) for r in mine) / len(mine)
    assert length["by_request"] == pytest.approx(by_request)
    assert sum(numbers["budget"]["histogram"].values()) == rounds
    assert sum(stage["share"] for stage in numbers["timings"].values()) == pytest.approx(1.0)
    shares_by_depth = numbers["acceptance_by_depth"]
    assert shares_by_depth[0]["share"] == 1.0  # what prompt lookup finds is the alphabet
    assert report["results"]["plain"]["overall"]["accepted_length"]["pooled"] == 1.0
    assert report["results"]["plain"]["overall"]["speedup_over_plain"]["value"] == 1.0


def test_passes_are_counted_a_round_plain_ones_among_them(measured, report):
    plan, records = measured
    some = {
        key: evolve(
            record, rounds=evolve(record.rounds, passes=[n % 3 for n in range(len(record.rounds))])
        )
        for key, record in records.items()
    }
    mine = [record.rounds for key, record in some.items() if key[0] == "two"]
    found = report_of(plan, some)["results"]["two"]["overall"]["passes"]
    assert found == pytest.approx(sum(map(sum, (r.passes for r in mine))) / sum(map(len, mine)))
    assert report["results"]["two"]["overall"]["passes"] == 0.0  # a look-up runs no model


def test_kernels_are_shown_where_they_ran_and_nowhere_else(measured, report, tmp_path):
    plan, records = measured
    assert kernels(report) == []
    some = {
        key: evolve(record, kernels={"walk": 3, "race": 2}, near_ties=1)
        if key[0] == "two"
        else record
        for key, record in records.items()
    }
    found = report_of(plan, some)
    mine = [record for key, record in some.items() if key[0] == "two"]
    numbers, rounds = found["results"]["two"]["overall"], sum(len(r.rounds) for r in mine)
    assert numbers["kernels"]["walk"] == {
        "launches": 3 * len(mine), "per_round": 3 * len(mine) / rounds,
    }  # fmt: skip
    assert numbers["near_ties"] == len(mine)
    assert found["results"]["one"]["overall"]["near_ties"] == 0
    assert [row[:3] for row in kernels(found)] == [
        ("two", "race", str(2 * len(mine))), ("two", "walk", str(3 * len(mine))),
    ]  # fmt: skip
    for result, says in ((report, False), (found, True)):
        written = {path.name: path.read_text() for path in reports.write(tmp_path, result, mine)}
        assert all(("Kernels that ran" in written[f"report.{e}"]) is says for e in ("md", "html"))


def test_groups_are_parts_of_the_whole(report):
    for results in report["results"].values():
        whole = results["overall"]
        assert whole["tokens"] == results["easy"]["tokens"] + results["hard"]["tokens"]
        assert whole["requests"] == results["easy"]["requests"] + results["hard"]["requests"]


def test_a_partial_report_compares_only_what_both_have_finished(measured):
    plan, records = measured
    kept = {key: r for key, r in records.items() if key[:2] != ("plain", "long")}
    del kept["two", "other", 1]
    report = report_of(plan, kept)
    assert (report["partial"], report["done"], report["planned"]) == (True, 15, 18)
    both = [key for key in kept if key[0] == "two" and ("plain", *key[1:]) in kept]
    mine = sum(kept[key].seconds for key in both)
    plain = sum(kept["plain", *key[1:]].seconds for key in both)
    found = report["results"]["two"]["overall"]["speedup_over_plain"]["value"]
    assert found == pytest.approx(plain / mine)
    assert report["results"]["two"]["overall"]["same_tokens"]["compared"] == len(both)


@pytest.mark.parametrize("kept", [0, 1])
def test_a_report_of_nothing_or_hardly_anything_can_be_written(measured, tmp_path, kept):
    plan, records = measured
    some = dict(list(records.items())[:kept])
    written = reports.write(tmp_path, report_of(plan, some), list(some.values()))
    assert all(path.stat().st_size > 0 for path in written if path.suffix != ".jsonl")


def test_texts_that_differ_are_counted_with_the_largest_margin(measured):
    plan, records = measured
    differ = [
        TextDifference("one", "long", 0, 3, 0.02, False, True),
        TextDifference("one", "long", 1, 3, 0.5, False, True),
    ]
    report = report_of(plan, records, differ)
    assert report["results"]["one"]["overall"]["same_tokens"] == {
        "promised": True,
        "compared": 6,
        "same": 4,
        "largest_margin": 0.5,
    }
    assert same(report["results"]["one"]["overall"]["same_tokens"]) == "4 of 6, margin 0.5"
    assert same(report["results"]["one"]["hard"]["same_tokens"]) == "yes"
    assert '<td class="no">4 of 6' in reports.page(report, list(records.values()))


def test_every_form_has_every_contestant_and_the_same_speed(measured, report, tmp_path):
    _, records = measured
    folder = tmp_path / "out"
    written = reports.write(folder, report, list(records.values()))
    assert [path.name for path in written] == [
        "report.json",
        "report.csv",
        "report.md",
        "report.jsonl",
        "report.html",
    ]
    assert sorted(folder.iterdir()) == sorted(written)
    assert json.loads(written[0].read_text()) == json.loads(json.dumps(report))
    table = list(csv.DictReader(io.StringIO(written[1].read_text())))
    assert len(table) == 3 * 3
    for row in table:
        numbers = report["results"][row["contestant"]][row["group"]]
        assert float(row["tokens_per_second"]) == numbers["tokens_per_second"]["value"]
        shown = f"{numbers['tokens_per_second']['value']:.1f}"
        assert f"| {row['contestant']} | {shown} |" in written[2].read_text()
        assert f"<td>{shown}</td>" in written[4].read_text()


def test_lines_have_spec_benchs_shape(measured, report):
    _, records = measured
    text = reports.spec_bench(report, list(records.values()))
    answers = [json.loads(line) for line in text.splitlines()]
    assert len(answers) == 3 * len(PROMPTS)
    for answer in answers:
        assert set(answer) == {"question_id", "category", "model_id", "choices"}
        for index, choice in enumerate(answer["choices"]):
            assert choice["index"] == index
            assert choice["new_tokens"] == [12]
            assert choice["decoding_steps"] == [len(choice["accept_lengths"])]
            assert sum(choice["accept_lengths"]) == 12 - 1  # the first token is the prefill's
            assert choice["wall_time"][0] > 0


def test_rows_match_their_columns(report):
    assert all(len(row) == len(COLUMNS) for row in rows(report))


def test_what_controllers_expected_is_shown_where_one_predicts(measured):
    """Negative control: fixed budgets predict nothing, and there is no empty table."""
    plan, records = measured
    page = reports.page(report_of(plan, records), list(records.values()))
    assert "What controllers expected" not in page
    for record in records.values():
        if record.contestant == "two":
            rounds = record.rounds
            rounds.expected_seconds[:] = [1.1 * seconds for seconds in rounds.seconds]
            rounds.expected_tokens[:] = [1.5] * len(rounds)
            rounds.best[:] = rounds.budget
    report = report_of(plan, records)
    forecast = report["results"]["two"]["overall"]["forecast"]
    assert forecast["seconds_error"] == pytest.approx(0.1)
    assert forecast["expected_tokens"] == 1.5
    assert forecast["chosen_budget"] == forecast["best_budget"]
    ((name, *cells),) = forecasts(report)
    assert (name, cells[1], len(cells) + 1) == ("two", "10.0%", len(FORECAST))
    for text in (reports.markdown(report), reports.page(report, list(records.values()))):
        assert "What controllers expected" in text
        assert "10.0%" in text


FIGURES = [
    bars([Bar("a<b", 2.0, 1.5, 2.5), Bar("hf", 0.9, muted=True)], "times", 1.0),
    bars([Bar("tiny", 0.01)], "times", 1.0),
    lines([Series("a&b", [(1, 0.9), (2, 0.8)], 0), Series("c", [(1, 0.5)], 9)], "x", "y", 1.0),
    steps([Series("flat", [(0, 0), (1, 0)], 0)], "x", "y"),
    steps([Series("one point", [(0, 5)], 3)], "x", "y"),
    shares({"a": {"x": 1.0, "y": 2.0}, "b": {"x": 0.0, "y": 3.0}}, "ms"),
]


@pytest.mark.parametrize("figure", FIGURES)
def test_a_figure_is_xml_whose_marks_lie_inside_it(figure):
    root = ET.fromstring(figure)
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    found = 0
    for element in root.iter():
        for key, limit in (("x", width), ("cx", width), ("y", height), ("cy", height)):
            if key in element.attrib:
                found += 1
                assert 0 <= float(element.attrib[key]) <= limit
    assert found > 4


def test_bars_are_as_long_as_their_values():
    root = ET.fromstring(bars([Bar("a", 1.0), Bar("b", 2.5)], "times", 1.0))
    lengths = [float(e.attrib["width"]) for e in root.iter() if "bar" in e.get("class", "")]
    assert lengths[1] / lengths[0] == pytest.approx(2.5, rel=0.01)


def test_the_page_stands_alone(measured, report):
    _, records = measured
    text = reports.page(report, list(records.values()))
    assert not re.findall(r"(?:src|href)\s*=\s*[\"'](?!data:)", text)
    assert not re.findall(r"https?://|@import|url\(|<script", text)
    assert text.count('<svg class="figure"') == 4
    (drawing,) = re.findall(r"data:image/svg\+xml;base64,([^\"]+)", text)
    ET.fromstring(base64.b64decode(drawing))
    for figure in re.findall(r"<svg class=\"figure\".*?</svg>", text, re.DOTALL):
        ET.fromstring(figure)


def test_everyone_can_be_compared_with_a_reference(measured, report):
    plan, records = measured
    found = summarise(
        plan, records, [], machine=machine(), command="draftwood bench", reference="two"
    )
    ours, theirs = (found["results"][name]["overall"] for name in ("one", "two"))
    ratio = ours["tokens_per_second"]["value"] / theirs["tokens_per_second"]["value"]
    assert ours["speedup_over_reference"]["value"] == pytest.approx(ratio)
    assert ours["speedup_over_reference"]["low"] <= ratio <= ours["speedup_over_reference"]["high"]
    assert theirs["speedup_over_reference"] == {"value": 1.0, "low": None, "high": None}
    assert columns(found)[-3:] == ("times two", "(95%)", "same text")
    assert all(len(row) == len(columns(found)) for row in rows(found))
    assert "| times two | (95%) |" in reports.markdown(found)
    assert ">times two</th>" in reports.page(found, list(records.values()))
    assert report["results"]["one"]["overall"]["speedup_over_reference"] is None
    assert columns(report) == COLUMNS


def test_a_roofline_shows_the_sizes_that_rounds_verified(measured):
    from attrs import evolve

    from draftwood.plugins.controllers.roofline.cost_model import CostModel
    from draftwood.plugins.controllers.roofline.roof import Roof

    plan, records = measured
    costs = CostModel(Roof((0.1, 0.05, 0, 0, 0), (0.2, 0.001, 0, 0, 0)))
    priced = [
        evolve(each, machine=lambda: costs) if each.name == "two" else each
        for each in plan.contestants
    ]
    found = report_of(Plan(priced, PROMPTS, repeat=2), records)
    assert list(found["rooflines"]) == ["two"]
    roofline = found["rooflines"]["two"]
    histogram = found["results"]["two"]["overall"]["budget"]["histogram"]
    assert {str(r["tokens"] - 1): r["count"] for r in roofline["rounds"]} == histogram
    assert roofline["compute"][0] == pytest.approx(0.15)
    assert roofline["expected"][0] == pytest.approx(0.201)
    text = reports.page(found, list(records.values()))
    figure = re.search(r"Forwards that two chose.*?(<svg.*?</svg>)", text, re.DOTALL)
    assert figure is not None
    drawn = ET.fromstring(figure[1])
    assert len(drawn.findall("circle")) == len(histogram)
    # Contestants without prices of this kind have no such figure.
    assert report_of(*measured)["rooflines"] == {}


def test_names_cannot_break_the_page(measured, lined_up):
    from attrs import evolve

    plan, _ = measured
    nasty = "<script>alert('x')</script>&\""
    renamed = [
        evolve(each, name=nasty, plain="plain") if each.name == "one" else each
        for each in plan.contestants
    ]
    plan, journal = Plan(renamed, PROMPTS[:1]), Journal(None, {})
    list(measure(plan, journal))
    text = reports.page(report_of(plan, journal.records), list(journal.records.values()))
    assert "<script" not in text
    assert "&lt;script&gt;" in text


BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))), None)


@pytest.fixture
def browse(tmp_path):
    """browse(page) -> what a headless browser says about it, and how large its picture is."""

    def open_page(page):
        path, picture = tmp_path / "page.html", tmp_path / "page.png"
        path.write_text(page)
        flags = ("--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr")
        ran = subprocess.run(
            [
                str(BROWSER),
                *flags,
                f"--user-data-dir={tmp_path / 'profile'}",
                f"--screenshot={picture}",
                "--window-size=1000,2400",
                path.as_uri(),
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        said = [line for line in ran.stderr.splitlines() if "CONSOLE" in line]
        return said, picture.stat().st_size

    return open_page


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
def test_a_browser_draws_the_page_and_has_nothing_to_say(measured, report, browse):
    """The page's policy forbids requests, so one would be a message on the console."""
    _, records = measured
    page = reports.page(report, list(records.values()))
    said, size = browse(page)
    assert said == []
    assert size > 20_000
    said, _ = browse(page.replace("</main>", '<img src="https://example.org/a.png"></main>'))
    assert any("Content Security Policy" in line for line in said)


def test_page_follows_dark_and_narrow_screens_and_counts_rounds_by_depth(measured, report):
    _, records = measured
    text = reports.page(report, list(records.values()))
    assert "@media (prefers-color-scheme: dark)" in text
    assert '<div class="wide"><svg' in text
    assert not re.search(r"</p>\s*<svg", text)
    depths = report["results"]["one"]["overall"]["acceptance_by_depth"]
    assert depths
    for row in depths:
        assert f"<td>{row['share']:.2f} ({row['rounds']})</td>" in text
