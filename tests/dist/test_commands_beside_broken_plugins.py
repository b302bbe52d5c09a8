"""Commands work beside any broken distribution; those that decode nothing need no torch."""

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
def test_broken_plugins_are_listed_and_every_command_works(beside, install):
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


def test_unknown_plugin_or_command_shows_the_causes_of_load_failures(beside, install, tmp_path):
    install("foo-spec", BROKEN["import-error"][0])
    (tmp_path / "a.yaml").write_text("target: {model: builtin}\ndrafter: {use: foo}\n")
    for arguments in (["check", str(tmp_path / "a.yaml")], ["foo-command"]):
        done = beside(*arguments)
        assert done.returncode == 2
        assert "'foo-spec 0.2' failed to load (No module named 'flash_attn_of_nobody')" in (
            done.stderr
        )
        assert "Traceback" not in done.stderr


def test_duplicate_is_an_error_where_it_is_used_with_a_remedy(beside, install, tmp_path):
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


RAISES = "import sys\nprint('imported', file=sys.stderr)\nraise RuntimeError('no licence')"


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "ngram", "--prompt", "def", "--set", "generation.max_new_tokens=4"],
        ["trace", "ngram", "--prompt", "def", "--rounds", "1"],
        ["check", "bastion"],
        ["schema"],
        ["plugins", "list"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_no_plugins_imports_no_third_party(beside, install, arguments):
    install("raising-spec", RAISES)
    done = beside("--no-plugins", *arguments)
    assert done.returncode == 0, done.stderr
    assert "imported" not in done.stderr


def test_without_no_plugins_the_failure_is_reported_and_decoding_works(beside, install):
    install("raising-spec", RAISES)
    command = ["run", "ngram", "--prompt", "def", "--set", "generation.max_new_tokens=4"]
    done = beside(*command)
    assert done.returncode == 0, done.stderr
    assert "imported" in done.stderr
    assert "RuntimeError: no licence" in beside("plugins", "list").stdout


DRAFTER = """
from attrs import frozen
from draftwood import DrafterTraits, Plugin, hookimpl

@frozen
class Options:
    pass

@hookimpl
def draftwood_register_drafters():
    traits = lambda options: DrafterTraits("lookup", 4)
    yield Plugin("mistyped", "", Options, "MODULE:Drafer", traits)
    yield Plugin("failing", "", Options, "MODULE:Drafter", traits)
    yield Plugin("raising", "", Options, "nowhere.at_all:Drafter", traits)

class Drafter:
    def __new__(cls, options):
        from draftwood.core.errors import PluginError
        from draftwood.core.interfaces import Drafter

        class Failing(Drafter):
            def open(self, target, sampling):
                raise PluginError("the table of tokens is empty")

            def propose(self, work):
                raise AssertionError

        return Failing()
"""


@pytest.fixture
def pipeline_of(install, tmp_path):
    """A pipeline file with a drafter of the distribution `drafter-spec`."""
    install("drafter-spec", DRAFTER)

    def write(drafter):
        path = tmp_path / "pipeline.yaml"
        path.write_text(f"target: {{model: builtin}}\ndrafter: {{use: {drafter}}}\n")
        return str(path)

    return write


@pytest.mark.parametrize(
    ("drafter", "cause"),
    [("mistyped", "has no attribute 'Drafer'"), ("raising", "No module named 'nowhere'")],
)
def test_check_finds_a_factory_that_cannot_be_imported(beside, pipeline_of, drafter, cause):
    done = beside("check", pipeline_of(drafter))
    assert done.returncode == 2
    assert f"2:16: drafter.use: drafter '{drafter}' of 'drafter-spec 0.2' cannot be" in done.stderr
    assert cause in done.stderr
    problems = json.loads(beside("check", pipeline_of(drafter), "--json").stdout)["problems"]
    assert [problem["path"] for problem in problems] == ["drafter.use"]


def test_plugin_error_while_decoding_exits_with_2_and_no_traceback(beside, pipeline_of):
    path = pipeline_of("failing")
    assert beside("check", path).returncode == 0
    done = beside("run", path, "--prompt", "def")
    assert done.returncode == 2
    assert "error: the table of tokens is empty" in done.stderr
    assert "Traceback" not in done.stderr


def test_third_party_command_runs_and_is_in_the_help(beside, install):
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


def test_plugins_list_is_the_same_without_torch(beside):
    arguments = ["--no-plugins", "plugins", "list", "--json"]
    assert listed(beside(*arguments, block=["torch", "transformers"])) == listed(beside(*arguments))


def test_doctor_fails_without_torch(beside):
    done = beside("doctor", block=["torch", "transformers"])
    assert done.returncode == 1
    assert "failed   torch" in done.stdout
    assert "Traceback" not in done.stderr
