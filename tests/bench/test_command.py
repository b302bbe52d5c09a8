"""`draftwood bench`: what it prints and writes, what an interrupt leaves, when it fails."""

import json

import pytest

from draftwood.bench import journal as journals
from draftwood.core.values import Verdict
from draftwood.plugins.verifiers.match import Match


@pytest.fixture
def bench(draftwood, pipeline, prompt_file):
    """bench(...) -> two pipelines on three prompts."""
    files = [pipeline("one"), pipeline("two", 8)]
    return lambda *more: draftwood("bench", *files, "--prompts", prompt_file, *more)


def interrupted_after(records, monkeypatch):
    """From now on a third party presses Ctrl-C when `records` more are kept."""
    real, left = journals.Journal.append, [records]

    def append(self, record):
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        real(self, record)

    monkeypatch.setattr(journals.Journal, "append", append)


def test_a_table_goes_to_standard_output_and_progress_to_standard_error(bench):
    ran = bench("--repeat", "2")
    assert ran.code == 0
    assert ran.out.startswith("easy:\n")
    assert ran.out.count("\npipeline") == 3
    assert max(map(len, ran.out.splitlines()[:-1])) <= 80
    assert "\noverall:\n" in ran.out
    lines = [line.split() for line in ran.out.splitlines()]
    assert [line[0] for line in lines if line and line[-1] == "yes"] == ["plain", "one", "two"] * 3
    assert "3 prompts, 2 repetitions, seed 0" in ran.out
    assert ran.err.splitlines()[-1] == "other, repetition 2: 18 of 18 requests"


def test_json_is_the_report_and_says_what_was_run(bench, tmp_path):
    ran = bench("--json", "--tokens", "5", "--out", str(tmp_path / "out"))
    report = json.loads(ran.out)
    assert report == json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["results"]["one"]["overall"]["tokens"] == 3 * 5
    assert report["command"].startswith("draftwood bench ")
    assert "--tokens 5" in report["command"]
    assert "--seed" not in report["command"]
    assert report["contestants"]["two"]["controller"] == {
        "use": "fixed",
        "options": {"nodes": 8, "depth": None},
    }


def test_an_interrupt_leaves_a_valid_partial_report_and_the_same_command_goes_on(
    bench, tmp_path, monkeypatch
):
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        interrupted_after(4, patch)
        ran = bench("--out", str(out))
    assert ran.code == 130
    assert ran.err.endswith("interrupted\n")
    assert "partial: 4 of 9 requests" in ran.out
    report = json.loads((out / "report.json").read_text())
    assert (report["partial"], report["done"]) == (True, 4)
    assert "A partial report" in (out / "report.html").read_text()
    kept = (out / "journal.jsonl").read_bytes()

    ran = bench("--out", str(out))
    assert ran.code == 0
    report = json.loads((out / "report.json").read_text())
    assert (report["partial"], report["done"]) == (False, 9)
    assert (out / "journal.jsonl").read_bytes().startswith(kept)
    assert "A partial report" not in (out / "report.html").read_text()
    again = (out / "journal.jsonl").read_bytes()
    assert bench("--out", str(out)).code == 0
    assert (out / "journal.jsonl").read_bytes() == again


def test_an_interrupt_before_anything_was_kept_leaves_a_report_too(bench, tmp_path, monkeypatch):
    interrupted_after(0, monkeypatch)
    ran = bench("--out", str(tmp_path / "out"))
    assert ran.code == 130
    assert json.loads((tmp_path / "out" / "report.json").read_text())["done"] == 0


def test_a_folder_of_another_benchmark_is_not_touched(bench, tmp_path):
    out = tmp_path / "out"
    assert bench("--out", str(out)).code == 0
    before = {path: path.read_bytes() for path in out.iterdir()}
    ran = bench("--out", str(out), "--seed", "3")
    assert ran.code == 2
    assert "holds another benchmark: seed differ" in ran.err
    assert {path: path.read_bytes() for path in out.iterdir()} == before


def test_a_pipeline_that_changes_the_text_fails(bench, monkeypatch):
    real = Match.judge

    def judge(self, distributions, tree, rng):
        verdict = real(self, distributions, tree, rng)
        return Verdict(verdict.accepted, 3) if tree.nodes else verdict

    monkeypatch.setattr(Match, "judge", judge)
    ran = bench()
    assert ran.code == 1
    assert "one, prompt short: not plain decoding's text from token " in ran.err
    assert "one, prompt other" not in ran.err  # there was nothing to draft, and nothing to spoil


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--baseline", "hf-beam"], "no baseline 'hf-beam'; choices: hf-generate"),
        (["--baseline", "hf-assisted"], "must be given together"),
        (["--baseline", "hf-generate"], "not a OracleTarget"),
        (["--set", "tree.max_node=3"], "did you mean 'max_nodes'?"),
        (["--prompts", "builtin:poems"], "no bundled prompts"),
        (["--repeat", "0"], "--repeat"),
    ],
)
def test_bad_input_exits_with_2_before_anything_is_measured(bench, tmp_path, arguments, message):
    ran = bench("--out", str(tmp_path / "out"), *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert not (tmp_path / "out").exists()
