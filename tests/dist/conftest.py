"""Fake distributions: dist-info folders and modules in a folder of their own, put on sys.path."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

GOOD = """
from attrs import frozen
from draftwood import DrafterTraits, Plugin, hookimpl

@frozen
class Options:
    repeat: int = 4

@hookimpl
def draftwood_register_drafters():
    yield Plugin("NAME", "repeats the anchor", Options, "MODULE:Echo",
                 lambda options: DrafterTraits("lookup", options.repeat))

class Echo:
    def __init__(self, options):
        self.options = options
"""

Install = Callable[..., str]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An import folder that only this test sees."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]


@pytest.fixture
def install(site: Path) -> Install:
    """install(distribution, code, version=..., entry_points=...) -> name of its module."""

    def write(
        distribution: str,
        code: str = GOOD,
        *,
        version: str = "0.2",
        name: str = "echo",
        entry_points: str | None = None,
    ) -> str:
        module = distribution.replace("-", "_")
        body = dedent(code).replace("MODULE", module).replace("NAME", name)
        (site / f"{module}.py").write_text(body)
        info = site / f"{module}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        )
        if entry_points is None:
            entry_points = f"[draftwood]\n{distribution} = {module}\n"
        (info / "entry_points.txt").write_text(entry_points)
        return module

    return write
