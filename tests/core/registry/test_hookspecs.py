"""The example in each hook's docstring works."""

import inspect
import sys
import textwrap
import types

import attrs
import click
import pytest

import draftwood
from draftwood.core.registry import hookspecs
from draftwood.core.registry.loader import load_plugins
from draftwood.core.registry.plugin import Plugin, TrainablePlugin
from draftwood.core.registry.registry import Registry

HOOKS = {name: spec for name, spec in vars(hookspecs).items() if name.startswith("draftwood_")}
EXPECTED = {
    "draftwood_register_drafters": ("drafter", "echo"),
    "draftwood_register_trees": ("tree", "comb"),
    "draftwood_register_controllers": ("controller", "coin"),
    "draftwood_register_verifiers": ("verifier", "strict"),
    "draftwood_register_trainables": ("trainable", "medusa"),
    "draftwood_round_finished": ("observer", "example"),
}


@attrs.frozen
class Options:
    repeat: int = 4


def example(documented: object) -> str:
    """The indented code of a docstring, from its first decorator or import on."""
    lines = (inspect.getdoc(documented) or "").splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith(("    @", "    from")))
    code = [line for line in lines[first:] if line.startswith("    ") or not line]
    return textwrap.dedent("\n".join(code))


def registry_of(code: str, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """What the loader registers from a module with this code."""
    module = types.ModuleType("example")
    names = {name: getattr(draftwood, name) for name in ("Plugin", "hookimpl", "Draws")}
    traits = ("DrafterTraits", "TreeTraits", "ControllerTraits", "VerifierTraits")
    names |= {name: getattr(draftwood, name) for name in traits}
    module.__dict__.update(names, Options=Options, TrainablePlugin=TrainablePlugin, click=click)
    exec(code, module.__dict__)
    monkeypatch.setitem(sys.modules, "example", module)
    return load_plugins(environ={}, found=(), bundled=("example",))


@pytest.mark.parametrize("name", HOOKS)
def test_hook_docstring_names_its_caller_and_its_example_registers(name, monkeypatch):
    doc = inspect.getdoc(HOOKS[name]) or ""
    assert "alled" in doc
    registry = registry_of(example(HOOKS[name]), monkeypatch)
    if name == "draftwood_register_commands":
        commands, _ = registry.commands()
        assert list(commands) == ["hello"]
    else:
        (record,) = registry.records
        assert (record.kind, record.name, record.status) == (*EXPECTED[name], "ok")


def test_example_of_the_plugin_record_registers(monkeypatch):
    (record,) = registry_of(example(Plugin), monkeypatch).records
    assert (record.kind, record.name, record.status) == ("drafter", "echo", "ok")
