"""The commands that need no model: output, JSON shapes, exit codes, help."""

import json
import re
from pathlib import Path

import click
import pytest

from draftwood.cli import doctor
from draftwood.cli.app import COMMANDS, app
from draftwood.cli.check import JSON as CHECK_JSON
from draftwood.cli.reference import cli_page, pipeline_page
from draftwood.core.config.pipeline import builtin_pipelines
from draftwood.core.renames import COMMANDS as MOVED

ROOT = Path(__file__).parents[2]
# A hub name, so that these tests need no bundled model.
ANY_TARGET = ("--set", "target.model=some/model")
DRAFTER_ALONE = "target: {model: some/model}\ndrafter: {use: ngram}\n"


def test_help_lists_every_command(draftwood):
    ran = draftwood("--help")
    assert ran.code == 0
    for name, line in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(line)}$", ran.out, re.MULTILINE)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_begins_with_its_line_in_the_table(name):
    command = app.get_command(click.Context(app), name)
    assert command is not None
    assert (command.help or "").partition("\n")[0] == COMMANDS[name]
    assert all(p.help for p in command.params if isinstance(p, click.Option))


def test_version_is_the_packages(draftwood):
    import draftwood as package

    ran = draftwood("--version")
    assert (ran.code, ran.out) == (0, f"draftwood, version {package.__version__}\n")


@pytest.mark.parametrize("name", ["plain", "ngram"])
def test_check_accepts_builtin_pipelines_by_name(draftwood, name):
    ran = draftwood("check", name, *ANY_TARGET)
    assert ran.code == 0
    assert ran.out.startswith(f"{name}: ok\n")
    assert "match" in ran.out


def test_check_json_has_the_documented_keys(draftwood):
    ran = draftwood("check", "ngram", *ANY_TARGET, "--set", "tree.max_nodes=5", "--json")
    result = json.loads(ran.out)
    assert set(result) == {key for key in CHECK_JSON if "." not in key}
    assert result["ok"] is True
    assert result["parts"]["tree"]["use"] == "best_first"
    assert result["parts"]["tree"]["options"]["max_nodes"] == 5
    assert result["parts"]["tree"]["by_default"] is False


def test_check_shows_every_problem_and_exits_with_2(draftwood, tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text(
        DRAFTER_ALONE + "tree: {use: best_first, max_nodes: x}\nverifer: {use: match}\n"
    )
    ran = draftwood("check", str(path))
    assert (ran.code, ran.out) == (2, "")
    assert f"{path}:3:36: tree.max_nodes: expected a whole number, got 'x'" in ran.err
    assert "did you mean 'verifier'?" in ran.err
    as_json = draftwood("check", str(path), "--json")
    result = json.loads(as_json.out)
    assert (as_json.code, result["ok"], len(result["problems"])) == (2, False, 2)
    assert set(result) == {key for key in CHECK_JSON if "." not in key}


def test_check_refuses_a_composition_before_weights(draftwood, tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text("target: {model: some/model}\ntree: {use: chain}\n")
    ran = draftwood("check", str(path))
    assert ran.code == 2
    assert "tree: 'chain' has nothing to work on: there is no drafter" in ran.err


def test_check_marks_the_parts_that_a_drafter_alone_gets_by_default(draftwood, tmp_path):
    path = tmp_path / "drafter.yaml"
    path.write_text(DRAFTER_ALONE)
    ran = draftwood("check", str(path))
    assert ran.code == 0
    lines = {line.split()[0]: line for line in ran.out.splitlines()[1:]}
    for kind, use in (("tree", "best_first"), ("controller", "fixed"), ("verifier", "auto")):
        assert use in lines[kind]
        assert lines[kind].endswith("(chosen by default)")
    assert "default)" not in lines["drafter"]
    parts = json.loads(draftwood("check", str(path), "--json").out)["parts"]
    assert [part["by_default"] for part in parts.values()] == [False, True, True, True]


@pytest.mark.parametrize(("old", "new"), MOVED.items())
def test_moved_command_names_its_new_place(draftwood, old, new):
    ran = draftwood(old)
    assert (ran.code, ran.out) == (2, "")
    assert f"'{old}' is now `{new}`, in draftwood's source repository" in ran.err


def test_plugins_list_shows_the_bundled_plugins(draftwood):
    ran = draftwood("--no-plugins", "plugins", "list", "--json")
    assert ran.code == 0
    records = json.loads(ran.out)["plugins"]
    keys = {"kind", "name", "distribution", "version", "status", "cause"}
    assert all(set(record) == keys for record in records)
    assert {record["status"] for record in records} == {"ok"}
    found = {(record["kind"], record["name"]) for record in records}
    assert found >= {
        ("drafter", "dflash"),
        ("drafter", "ngram"),
        ("tree", "best_first"),
        ("tree", "static"),
        ("tree", "chain"),
        ("controller", "fixed"),
        ("controller", "roofline"),
        ("verifier", "match"),
    }
    text = draftwood("--no-plugins", "plugins", "list").out
    assert all(record["name"] in text for record in records)


def test_schema_prints_what_it_writes(draftwood, tmp_path):
    printed = json.loads(draftwood("schema").out)
    target = tmp_path / "draftwood.schema.json"
    ran = draftwood("schema", "--output", str(target))
    assert (ran.code, ran.out) == (0, "")
    assert json.loads(target.read_text()) == printed
    bad = draftwood("schema", "--output", str(tmp_path))
    assert bad.code == 2
    assert "Is a directory" in bad.err


def test_doctor_accepts_this_machine(draftwood):
    ran = draftwood("doctor", "--json")
    result = json.loads(ran.out)
    assert set(result) == {"ok", "checks"}
    assert (ran.code, result["ok"]) == (0, True)
    names = {check["name"] for check in result["checks"]}
    assert names >= {
        "draftwood", "torch", "devices", "threads", "transformers", "kernels", "cache", "plugins",
    }  # fmt: skip
    assert "torch" in draftwood("doctor").out


def test_doctor_warns_of_a_cache_that_is_no_folder(draftwood, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path / "file"))
    checks = {
        check["name"]: check for check in json.loads(draftwood("doctor", "--json").out)["checks"]
    }
    assert checks["cache"]["status"] == "warning"
    assert "is no folder" in checks["cache"]["detail"]


def test_doctor_exits_with_1_if_torch_is_missing(draftwood, monkeypatch):
    def missing() -> str:
        raise ImportError("No module named 'torch'")

    monkeypatch.setattr(doctor, "_torch", missing)
    ran = draftwood("doctor")
    assert ran.code == 1
    assert "failed   torch         ImportError: No module named 'torch'" in ran.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["chek"], "no command 'chek'; did you mean 'check'?"),
        (["check"], "Missing argument 'PIPELINE'"),
        (["check", "--nope", "plain"], "No such option"),
        (["check", "bastin"], "did you mean 'bastion'?"),
        (["train", "/nowhere.yaml"], "/nowhere.yaml: no such file"),
        (["demo", "--json", "--markdown"], "give one of --json and --markdown"),
    ],
)
def test_bad_input_exits_with_2_and_a_message(draftwood, arguments, message):
    ran = draftwood(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err


def test_interrupt_exits_with_130(draftwood, monkeypatch):
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "examine", interrupted)
    ran = draftwood("doctor")
    assert (ran.code, ran.err.strip()) == (130, "interrupted")


@pytest.mark.parametrize(
    ("path", "page"), [("cli.md", cli_page), ("reference/pipeline.md", pipeline_page)]
)
def test_reference_page_in_docs_is_current(path, page):
    text = (ROOT / "docs" / path).read_text(encoding="utf-8")
    assert text == page(), "run `make docs`"


def test_cli_page_names_every_builtin_pipeline_command_and_exit_code():
    page = cli_page()
    for name in (*builtin_pipelines(), "0", "1", "2", "130"):
        assert f"| `{name}` |" in page or f"| {name} |" in page
    for name in COMMANDS:
        assert f"## draftwood {name}" in page


def test_pipeline_page_has_a_meaning_for_every_key():
    rows = [line for line in pipeline_page().splitlines() if line.startswith("| `")]
    assert len(rows) > 100
    assert [row for row in rows if row.endswith("|  |")] == []
