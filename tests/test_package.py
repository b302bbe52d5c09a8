"""The package's face: what it exports, how it is typed, and what importing it costs."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import draftwood
import draftwood.testing

CONSTANTS = {"__version__", "ShouldExpand"}
"""Public names that are values or type aliases, and so cannot have a docstring of their own."""


def _run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_draftwood_imports_nothing_heavy() -> None:
    loaded = _run("import sys, draftwood; print(*sys.modules)").split()
    assert "draftwood" in loaded
    assert not {"torch", "transformers", "numpy", "click", "pluggy", "attr"} & set(loaded)


@pytest.mark.timing
def test_importing_draftwood_takes_under_150_ms() -> None:
    # Processor time: what the import costs whatever else this machine is doing.
    code = (
        "import time; start = time.process_time(); import draftwood;"
        "print(time.process_time() - start)"
    )
    assert min(float(_run(code)) for _ in range(3)) < 0.150


def test_names_that_registration_needs_are_loaded_without_torch() -> None:
    names = (
        "ControllerTraits, DrafterTraits, Draws, GenerationOptions, Kind, Plugin, PluginError, "
        "Sampling, TrainablePlugin, TreeTraits, VerifierTraits, "
        "hookimpl"
    )
    blocked = f"import sys; sys.modules['torch'] = None; from draftwood import {names}"
    _run(blocked)
    with pytest.raises(AssertionError):  # negative control: others need torch
        _run("import sys; sys.modules['torch'] = None; from draftwood import TokenTree")


@pytest.mark.parametrize("module", [draftwood, draftwood.testing])
def test_every_public_name_resolves_and_has_a_docstring(module: object) -> None:
    for name in module.__all__:  # type: ignore[attr-defined]
        value = getattr(module, name)
        if name not in CONSTANTS:
            assert inspect.getdoc(value), name
    assert set(dir(draftwood)) == set(draftwood.__all__)


def test_the_names_that_type_checkers_see_are_those_that_are_exported() -> None:
    """From the same modules: each public name is typed as what it is at run time."""
    source = ast.parse(Path(draftwood.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in source.body if isinstance(node, ast.If))
    modules = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        modules |= {alias.name: node.module for alias in node.names}
    assert {*modules, "__version__"} == set(draftwood.__all__)
    for name, module in modules.items():
        assert getattr(draftwood, name) is getattr(sys.modules[str(module)], name)


@pytest.mark.slow
def test_an_import_from_the_package_is_typed(tmp_path: Path) -> None:
    api = pytest.importorskip("mypy.api")
    program = tmp_path / "program.py"
    program.write_text(
        "from draftwood import Drafter, Pipeline, TreeBuilder, load_pipeline\n"
        "reveal_type(Drafter)\n"
        "reveal_type(load_pipeline)\n"
        "reveal_type(TreeBuilder(3).build())\n"
        "Pipeline(target=None, drafter=5)\n"
    )
    shown, errors, _ = api.run(
        ["--strict", "--follow-imports=silent", "--cache-dir", str(tmp_path), str(program)]
    )
    assert not errors
    assert "draftwood.core.interfaces.drafter.Drafter" in shown
    assert "draftwood.core.generation.Pipeline" in shown
    assert "draftwood.core.tree.TokenTree" in shown
    assert 'Argument "drafter" to "Pipeline" has incompatible type "int"' in shown


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'load_pipelin'"):
        draftwood.load_pipelin  # noqa: B018
