"""The commands that need no model: output, JSON shapes, exit codes, help."""

import json
import re
from pathlib import Path

import click
import pytest

from draftwood.cli import doctor
from draftwood.cli.app import COMMANDS, app
from draftwood.cli.check import JSON as CHECK_JSON
from draftwood.cli.reference import reference
from draftwood.core.config.pipeline import builtin_pipelines

ROOT = Path(__file__).parents[2]
# Checked against no model in particular, so that these tests hold without the bundled one.
ELSEWHERE = ("--set", "target.model=some/model")
SUPPLIED = "target: {model: some/model}\ndrafter: {use: ngram}\n"


def test_help_teaches_every_command(draftwood):
    ran = draftwood("--help")
    assert ran.code == 0
    for name, line in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(line)}$", ran.out, re.MULTILINE)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_commands_help_begins_with_the_line_that_the_table_has(name):
    command = app.get_command(click.Context(app), name)
    assert command is not None
    assert (command.help or "").partition("\n")[0] == COMMANDS[name]
    assert all(p.help for p in command.params if isinstance(p, click.Option))


def test_version(draftwood):
    import draftwood as package

    ran = draftwood("--version")
    assert (ran.code, ran.out) == (0, f"draftwood, version {package.__version__}\n")


@pytest.mark.parametrize("name", ["plain", "ngram"])
def test_check_accepts_builtin_pipelines_by_name(draftwood, name):
    ran = draftwood("check", name, *ELSEWHERE)
    assert ran.code == 0
    assert ran.out.startswith(f"{name}: ok\n")
    assert "match" in ran.out


def test_check_json_has_the_documented_keys(draftwood):
    ran = draftwood("check", "ngram", *ELSEWHERE, "--set", "tree.max_nodes=5", "--json")
    result = json.loads(ran.out)
    assert set(result) == set(CHECK_JSON)
    assert result["ok"] is True
    assert result["parts"]["tree"]["use"] == "best_first"
    assert result["parts"]["tree"]["options"]["max_nodes"] == 5


def test_check_shows_every_problem_and_exits_with_2(draftwood, tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text(SUPPLIED + "tree: {use: best_first, max_nodes: x}\nverifer: {use: match}\n")
    ran = draftwood("check", str(path))
    assert (ran.code, ran.out) == (2, "")
    assert f"{path}:3:36: tree.max_nodes: expected a whole number, got 'x'" in ran.err
    assert "did you mean 'verifier'?" in ran.err
    as_json = draftwood("check", str(path), "--json")
    result = json.loads(as_json.out)
    assert (as_json.code, result["ok"], len(result["problems"])) == (2, False, 2)
    assert set(result) == set(CHECK_JSON)


def test_check_refuses_a_composition_before_weights(draftwood, tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text(SUPPLIED)
    ran = draftwood("check", str(path))
    assert ran.code == 2
    for kind in ("tree", "controller", "verifier"):
        assert f"{kind}: is required beside drafter 'ngram'" in ran.err


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


def test_schema_prints_or_writes_the_same(draftwood, tmp_path):
    printed = json.loads(draftwood("schema").out)
    target = tmp_path / "draftwood.schema.json"
    ran = draftwood("schema", "--output", str(target))
    assert (ran.code, ran.out) == (0, "")
    assert json.loads(target.read_text()) == printed
    bad = draftwood("schema", "--output", str(tmp_path))
    assert bad.code == 2
    assert "Is a directory" in bad.err


def test_doctor_finds_this_machine_fit(draftwood):
    ran = draftwood("doctor", "--json")
    result = json.loads(ran.out)
    assert set(result) == {"ok", "checks"}
    assert (ran.code, result["ok"]) == (0, True)
    names = {check["name"] for check in result["checks"]}
    assert names >= {"draftwood", "torch", "devices", "threads", "transformers", "cache", "plugins"}
    assert "torch" in draftwood("doctor").out


def test_doctor_finds_a_cache_that_is_no_folder(draftwood, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path / "file"))
    checks = {
        check["name"]: check for check in json.loads(draftwood("doctor", "--json").out)["checks"]
    }
    assert checks["cache"]["status"] == "warning"
    assert "is no folder" in checks["cache"]["detail"]


def test_doctor_exits_with_1_if_something_needed_is_missing(draftwood, monkeypatch):
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
def test_bad_input_exits_with_2_and_says_what(draftwood, arguments, message):
    ran = draftwood(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err


def test_an_interrupt_exits_with_130(draftwood, monkeypatch):
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "examine", interrupted)
    ran = draftwood("doctor")
    assert (ran.code, ran.err.strip()) == (130, "interrupted")


def test_docs_cli_is_what_the_code_says():
    path = ROOT / "docs" / "cli.md"
    assert path.read_text(encoding="utf-8") == reference(), "run `make docs`"


def test_docs_cli_names_every_builtin_pipeline_command_and_exit_code():
    page = reference()
    for name in (*builtin_pipelines(), "0", "1", "2", "130"):
        assert f"| `{name}` |" in page or f"| {name} |" in page
    for name in COMMANDS:
        assert f"## draftwood {name}" in page
