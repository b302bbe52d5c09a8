"""A broken third party becomes a record with its cause; everything else still works."""

import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

from draftwood.core.errors import PluginError
from draftwood.core.registry.loader import load_plugins
from draftwood.core.registry.plugin import Kind
from draftwood.core.registry.registry import PluginRecord, Refusal, Registered, Registry


def load(site: Path, **settings: object) -> Registry:
    """Only the fake distributions, in an empty environment unless a test gives one."""
    defaults: dict[str, object] = {
        "environ": {},
        "bundled": (),
        "found": distributions(path=[str(site)]),
    }
    return load_plugins(**{**defaults, **settings})  # type: ignore[arg-type]


def only(registry: Registry) -> PluginRecord:
    (record,) = registry.records
    return record


def test_working_distribution_is_registered_with_its_source(site, install):
    install("echo-spec")
    registry = load(site)
    assert only(registry) == PluginRecord("drafter", "echo", "echo-spec", "0.2", "ok")
    entry = registry.get(Kind.DRAFTER, "echo")
    options = entry.plugin.options(repeat=2)
    assert entry.build(options).options is options


@pytest.mark.covers("broken-plugin")
@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("import flash_attn_of_nobody", "No module named 'flash_attn_of_nobody'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("raise BaseException", "BaseException"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def f(:", "SyntaxError: invalid syntax"),
        ("x = 1", "has no draftwood hook"),
    ],
)
def test_failing_entry_point_is_a_record_and_hides_no_other(site, install, code, cause):
    install("broken-spec", code, version="0.3")
    install("echo-spec")
    registry = load(site)
    assert registry.names(Kind.DRAFTER) == ["echo"]
    (record,) = [line for line in registry.records if line.status != "ok"]
    assert (record.kind, record.name, record.status) == (None, "broken-spec", "failed")
    assert (record.distribution, record.version) == ("broken-spec", "0.3")
    assert record.cause.startswith(cause)


def test_interrupt_while_loading_passes_through(site, install):
    install("slow-spec", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load(site)


def hook(body: str, kind: str = "drafters") -> str:
    return (
        "from attrs import define, frozen\nimport draftwood\n"
        "from draftwood import DrafterTraits, Plugin, hookimpl\n"
        "@frozen\nclass Options:\n    repeat: int = 4\n"
        "@frozen\nclass Unsupported:\n    names: list[str] = ()\n"
        "def traits(options):\n    return DrafterTraits('lookup', 4)\n"
        f"@hookimpl\ndef draftwood_register_{kind}():\n    {body}\n"
    )


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        ("return 3", "returned int, not an iterable of records"),
        ("return 'echo'", "returned str, not an iterable of records"),
        ("yield 'echo'", "returned str, not draftwood.Plugin"),
        ("raise SystemExit", "SystemExit"),
        ("yield Plugin('echo', '', Options, 'm:E', traits, api=9)", "written for plugin API 9"),
        ("yield Plugin('Echo!', '', Options, 'm:E', traits)", "bad name 'Echo!'"),
        ("yield Plugin('echo', '', Options, 'm.E', traits)", "bad factory 'm.E'"),
        ("yield Plugin('echo', 'a\\nb', Options, 'm:E', traits)", "its summary is not one line"),
        ("yield Plugin('echo', '', Options, 'm:E', None)", "its traits cannot be called"),
        (
            "yield Plugin('echo', '', Unsupported, 'm:E', traits)",
            "options: Unsupported.names: type list[str] is not allowed; choices: bool",
        ),
        (
            "yield Plugin('echo', '', dict, 'm:E', traits)",
            "options: <class 'dict'> is not an attrs",
        ),
    ],
)
def test_wrong_registration_is_a_record_with_its_cause(site, install, body, cause):
    install("wrong-spec", hook(body))
    registry = load(site)
    record = only(registry)
    assert (record.kind, record.status) == ("drafter", "failed")
    assert record.cause.startswith(cause)
    assert registry.names(Kind.DRAFTER) == []


def test_wrong_record_does_not_hide_its_neighbours(site, install):
    good = "Plugin('echo', '', Options, 'm:E', traits)"
    install("mixed-spec", hook(f"yield {good}\n    yield 3\n    raise ValueError('later')"))
    registry = load(site)
    assert registry.names(Kind.DRAFTER) == ["echo"]
    assert {line.cause for line in registry.records} == {
        None,
        "returned int, not draftwood.Plugin",
        "ValueError: later",
    }


def test_hook_that_returns_none_adds_nothing(site, install):
    install("shy-spec", hook("return None"))
    assert load(site).records == ()


@pytest.mark.covers("broken-plugin")
@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (
            hook("return []", kind="drafter"),
            "unknown hook 'draftwood_register_drafter'; "
            "did you mean 'draftwood_register_drafters'?",
        ),
        (
            "def draftwood_register_drafters():\n    return []\n",
            "draftwood_register_drafters is not marked with @hookimpl",
        ),
        (
            "from draftwood import hookimpl\n"
            "@hookimpl\ndef draftwood_register_drafters(config):\n    return []\n",
            "PluginValidationError",
        ),
    ],
)
def test_hook_that_is_never_called_is_a_record(site, install, code, cause):
    install("misspelt-spec", code)
    record = only(load(site))
    assert record.status == "failed"
    assert record.cause.startswith(cause)


@pytest.mark.covers("duplicate-plugin")
def test_duplicate_name_is_an_error_that_names_both(site, install):
    install("a-spec", version="1.0")
    install("b-spec", version="2.0")
    registry = load(site)
    assert {(line.status, line.cause) for line in registry.records} == {
        (
            "duplicate",
            "also registered by 'b-spec 2.0'; none is used: "
            "DRAFTWOOD_DISABLE_PLUGINS=a-spec leaves the other",
        ),
        (
            "duplicate",
            "also registered by 'a-spec 1.0'; none is used: "
            "DRAFTWOOD_DISABLE_PLUGINS=b-spec leaves the other",
        ),
    }
    with pytest.raises(PluginError) as error:
        registry.get(Kind.DRAFTER, "echo")
    assert "'a-spec 1.0'" in str(error.value)
    assert "'b-spec 2.0'" in str(error.value)
    assert "DRAFTWOOD_DISABLE_PLUGINS=" in str(error.value)


def test_third_party_cannot_replace_a_plugin_of_builtin_pipelines(site, install):
    ours = install("ours")
    install("theirs")
    found = [d for d in distributions(path=[str(site)]) if d.metadata["Name"] == "theirs"]
    registry = load(site, bundled=(ours,), found=found)
    assert isinstance(registry.find(Kind.DRAFTER, "echo"), Refusal)
    builtin = registry.find(Kind.DRAFTER, "echo", bundled_only=True)
    assert isinstance(builtin, Registered)
    assert builtin.source.bundled


def test_unknown_plugin_shows_the_causes_of_load_failures(site, install):
    install("foo-spec", "import flash_attn_of_nobody")
    install("echo-spec", name="ngram")
    with pytest.raises(PluginError) as error:
        load(site).get(Kind.DRAFTER, "ngrm")
    assert str(error.value) == (
        "unknown drafter 'ngrm'; did you mean 'ngram'?\n"
        "  installed: ngram\n"
        "  'foo-spec 0.2' failed to load (No module named 'flash_attn_of_nobody'); "
        "see `draftwood plugins list`"
    )


def test_factory_that_cannot_be_imported_names_its_distribution(site, install):
    install("late-spec", hook("yield Plugin('late', '', Options, 'nobody.here:Late', traits)"))
    entry = load(site).get(Kind.DRAFTER, "late")
    with pytest.raises(PluginError, match=r"drafter 'late' of 'late-spec 0.2' cannot be loaded"):
        entry.build(entry.plugin.options())


def test_unreadable_metadata_does_not_hide_other_distributions(site, install):
    install("a-spec", entry_points="[draftwood]\nthis line has no equals sign\n")
    install("b-spec")
    registry = load(site)
    assert registry.names(Kind.DRAFTER) == ["echo"]
    (record,) = [line for line in registry.records if line.status == "failed"]
    assert record.distribution == "a-spec"
    assert record.cause.startswith("entry_points.txt cannot be read")


@pytest.mark.parametrize("name", ["a-spec", "A_Spec"])
def test_environment_switches_distributions_on_and_off(site, install, name):
    install("a-spec", name="a")
    install("b-spec", name="b")
    assert load(site, environ={"DRAFTWOOD_PLUGINS": name}).names(Kind.DRAFTER) == ["a"]
    without = load(site, environ={"DRAFTWOOD_DISABLE_PLUGINS": name})
    assert without.names(Kind.DRAFTER) == ["b"]
    (record,) = [line for line in without.records if line.status == "off"]
    assert (record.distribution, record.cause) == ("a-spec", "DRAFTWOOD_DISABLE_PLUGINS names it")
    assert load(site, third_parties=False).names(Kind.DRAFTER) == []


def test_distribution_that_is_off_is_not_imported(site, install):
    module = install("a-spec")
    load(site, environ={"DRAFTWOOD_DISABLE_PLUGINS": "a-spec"})
    assert module not in sys.modules
    load(site)
    assert module in sys.modules


@pytest.mark.parametrize("variable", ["DRAFTWOOD_PLUGINS", "DRAFTWOOD_DISABLE_PLUGINS"])
def test_unknown_name_in_the_environment_is_a_record(site, variable):
    record = only(load(site, environ={variable: "nobody"}))
    assert (record.name, record.status, record.cause) == (
        "nobody",
        "failed",
        f"named by {variable}",
    )


@pytest.mark.parametrize("code", ["raise SystemExit", hook("return []", kind="drafter")])
def test_strict_makes_every_failure_fatal(site, install, code):
    install("broken-spec", code)
    with pytest.raises(PluginError, match=r"broken-spec of 'broken-spec 0.2'"):
        load(site, environ={"DRAFTWOOD_STRICT_PLUGINS": "1"})
    assert load(site, environ={"DRAFTWOOD_STRICT_PLUGINS": "0"}).records


def test_strict_accepts_working_distributions(site, install):
    install("echo-spec")
    registry = load(site, environ={"DRAFTWOOD_STRICT_PLUGINS": "1"})
    assert registry.names(Kind.DRAFTER) == ["echo"]


def test_observer_gets_the_stats(site, install):
    install(
        "watch-spec",
        "from draftwood import hookimpl\nseen = []\n"
        "@hookimpl\ndef draftwood_round_finished(stats):\n    seen.append(stats)\n",
    )
    registry = load(site)
    (observer,) = registry.observers
    observer.notify("stats")
    assert sys.modules["watch_spec"].seen == ["stats"]
    assert only(registry).kind == "observer"


def test_commands_are_added_and_never_replace_a_bundled_one(site, install):
    install(
        "command-spec",
        """
        import click
        from draftwood import hookimpl

        @hookimpl
        def draftwood_register_commands():
            yield click.Command("hello")
            yield click.Command("run")
            yield "nothing"
        """,
    )
    commands, records = load(site).commands(taken=["run"])
    assert list(commands) == ["hello"]
    assert [(line.name, line.status) for line in records] == [
        ("hello", "ok"),
        ("run", "failed"),
        ("command-spec", "failed"),
    ]


TRAINABLE = """
from attrs import frozen
from draftwood import hookimpl
from draftwood.core.registry.plugin import TrainablePlugin

@frozen
class Options:
    target: str

@hookimpl
def draftwood_register_trainables():
    yield TrainablePlugin("medusa", "heads on the last layer", Options, "MODULE:Medusa.start")

class Medusa:
    def __init__(self, *arguments):
        self.arguments = arguments

    @classmethod
    def start(cls, config, target, tokenizer):
        return cls(config, target, tokenizer)
"""


def test_trainable_is_registered_and_built_with_config_target_and_tokenizer(site, install):
    install("medusa-spec", TRAINABLE)
    registry = load(site)
    assert only(registry) == PluginRecord("trainable", "medusa", "medusa-spec", "0.2", "ok")
    assert registry.names("trainable") == ["medusa"]
    assert registry.get("trainable", "medusa").build(1, 2, 3).arguments == (1, 2, 3)
    refusal = registry.find("trainable", "medus")
    assert isinstance(refusal, Refusal)
    assert refusal.message == "unknown trainable 'medus'; did you mean 'medusa'?"


def test_trainable_hook_refuses_a_pipeline_plugin(site, install):
    good = "Plugin('echo', '', Options, 'm:E', traits)"
    install("wrong-spec", hook(f"yield {good}", kind="trainables"))
    record = only(load(site))
    assert (record.kind, record.name, record.status) == ("trainable", "echo", "failed")
    assert record.cause == "returned Plugin, not draftwood.TrainablePlugin"
