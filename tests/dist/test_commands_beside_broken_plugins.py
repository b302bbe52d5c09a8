"""Whatever is installed beside draftwood, its commands work; without torch, most of them do."""

import json
import os
import subprocess
import sys

import pytest

GOOD_COMMAND = """
import click
from draftwood import hookimpl

@hookimpl
def draftwood_register_commands():
    @click.command(help="Says hello.")
    def hello():
        click.echo("hello")
    yield hello
"""
BROKEN = {
    "import-error": ("import flash_attn_of_nobody", "No module named 'flash_attn_of_nobody'"),
    "system-exit": ("raise SystemExit(3)", "SystemExit: 3"),
    "wrong-type": (
        "from draftwood import hookimpl\n\n"
        "@hookimpl\ndef draftwood_register_trees():\n    return 3\n",
        "returned int, not an iterable of records",
    ),
    "misspelt": (
        "from draftwood import hookimpl\n@hookimpl\ndef draftwood_register_tree():\n    return 3\n",
        "unknown hook 'draftwood_register_tree'; did you mean 'draftwood_register_trees'?",
    ),
}
COMMANDS = [
    ["--help"],
    ["--version"],
    ["plugins", "list"],
    ["check", "ngram", "--set", "target.model=some/model"],
    ["schema"],
    ["run", "--help"],
]


@pytest.fixture
def beside(site):
    """Run a command in a process of its own that sees the fake distributions."""

    def beside(*arguments, block=(), **environ):
        code = (
            f"import sys; sys.modules.update(dict.fromkeys({list(block)!r}));"
            "from draftwood.cli import main; main()"
        )
        paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
        return subprocess.run(
            [sys.executable, "-c", code, *arguments],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environ},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return beside


def listed(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["plugins"]


@pytest.mark.covers("broken-plugin")
def test_every_kind_of_broken_plugin_is_listed_and_every_command_works(beside, install):
    for name, (code, _) in BROKEN.items():
        install(name, code, version="1.2")
    install("twin-a")
    install("twin-b")
    install("takes-ngram", name="ngram")
    for arguments in COMMANDS:
        done = beside(*arguments)
        assert done.returncode == 0, (arguments, done.stderr)
    records = listed(beside("plugins", "list", "--json"))
    for name, (_, cause) in BROKEN.items():
        (record,) = [line for line in records if line["distribution"] == name]
        assert (record["version"], record["status"]) == ("1.2", "failed")
        assert record["cause"] == cause
    twins = [line for line in records if line["distribution"].startswith("twin")]
    assert {line["status"] for line in twins} == {"duplicate"}
    text = beside("plugins", "list").stdout
    assert all(cause in text for _, cause in BROKEN.values())


def test_what_only_a_broken_plugin_could_have_given_shows_its_cause(beside, install, tmp_path):
    install("foo-spec", BROKEN["import-error"][0])
    (tmp_path / "a.yaml").write_text("target: {model: builtin}\ndrafter: {use: foo}\n")
    for arguments in (["check", str(tmp_path / "a.yaml")], ["foo-command"]):
        done = beside(*arguments)
        assert done.returncode == 2
        assert "'foo-spec 0.2' failed to load (No module named 'flash_attn_of_nobody')" in (
            done.stderr
        )
        assert "Traceback" not in done.stderr


def test_a_duplicate_is_an_error_where_it_is_used_and_has_a_remedy(beside, install, tmp_path):
    install("takes-ngram", name="ngram")
    path = tmp_path / "a.yaml"
    path.write_text(
        "extends: plain\ntarget: {model: some/model}\n"
        "drafter: {use: ngram}\ntree: {use: chain}\ncontroller: {use: fixed}\n"
    )
    done = beside("check", str(path))
    assert done.returncode == 2
    assert "drafter 'ngram' is registered by 'draftwood" in done.stderr
    assert "'takes-ngram 0.2'" in done.stderr
    assert beside("--no-plugins", "check", str(path)).returncode == 0
    assert beside("check", str(path), DRAFTWOOD_DISABLE_PLUGINS="takes-ngram").returncode == 0


def test_strict_makes_broken_plugins_fatal(beside, install):
    install("foo-spec", BROKEN["import-error"][0])
    done = beside("plugins", "list", DRAFTWOOD_STRICT_PLUGINS="1")
    assert done.returncode == 2
    assert "foo-spec" in done.stderr
    assert beside("--no-plugins", "plugins", "list", DRAFTWOOD_STRICT_PLUGINS="1").returncode == 0


def test_a_third_party_command_runs_and_is_in_the_help(beside, install):
    install("hello-spec", GOOD_COMMAND)
    assert beside("hello").stdout == "hello\n"
    assert "Says hello." in beside("--help").stdout
    records = [r for r in listed(beside("plugins", "list", "--json")) if r["kind"] == "command"]
    assert ("hello", "hello-spec") in [(r["name"], r["distribution"]) for r in records]
    assert beside("--no-plugins", "hello").returncode == 2


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_commands_that_decode_nothing_work_without_torch(beside, arguments):
    done = beside(*arguments, block=["torch", "transformers"])
    assert done.returncode == 0, done.stderr


def test_without_torch_no_bundled_plugin_is_missing_from_the_list(beside):
    arguments = ["--no-plugins", "plugins", "list", "--json"]
    assert listed(beside(*arguments, block=["torch", "transformers"])) == listed(beside(*arguments))


def test_without_torch_doctor_says_so_and_fails(beside):
    done = beside("doctor", block=["torch", "transformers"])
    assert done.returncode == 1
    assert "failed   torch" in done.stdout
    assert "Traceback" not in done.stderr
