"""Pipelines from configurations: which registry is used, and the default verifier."""

from collections.abc import Iterator
from importlib.metadata import Distribution
from pathlib import Path

import pytest

from draftwood.core import build, generation
from draftwood.core.build import build_component, load_pipeline
from draftwood.core.config import compose
from draftwood.core.config import pipeline as config_pipeline
from draftwood.core.errors import PluginError
from draftwood.core.generation import Pipeline
from draftwood.core.registry import loader
from draftwood.core.registry.loader import load_plugins
from draftwood.core.registry.plugin import Kind
from draftwood.core.registry.registry import Registry
from draftwood.plugins.verifiers.match import Match
from draftwood.testing import OracleTarget

DOCUMENT = {
    "drafter": {"use": "ngram"},
    "tree": {"use": "chain"},
    "controller": {"use": "fixed", "nodes": 2},
    "verifier": {"use": "match"},
}


def target() -> OracleTarget:
    return OracleTarget(5, lambda prefix: [0.2] * 5)


def no_registry() -> Registry:
    raise AssertionError("the installed plugins were loaded")


@pytest.fixture
def bundled(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """The registry of the bundled plugins, while loading the installed ones is an error."""
    registry = load_plugins(third_parties=False)
    for module in (build, compose, config_pipeline):
        monkeypatch.setattr(module, "installed", no_registry)
    return registry


def test_a_given_registry_is_the_only_one_that_loading_uses(bundled: Registry) -> None:
    pipeline = load_pipeline(DOCUMENT, target=target(), registry=bundled)
    assert len(pipeline.generate([1, 2], max_new_tokens=3).tokens) == 3
    with pytest.raises(AssertionError, match="were loaded"):  # negative control
        load_pipeline(DOCUMENT, target=target())


def test_a_component_is_built_from_the_given_registry(bundled: Registry) -> None:
    assert isinstance(build_component(Kind.VERIFIER, "match", registry=bundled), Match)
    empty = Registry((), ())
    with pytest.raises(PluginError, match="unknown verifier 'match'"):
        build_component(Kind.VERIFIER, "match", registry=empty)


def test_the_default_verifier_is_found_without_third_parties(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def searches() -> Iterator[Distribution]:
        raise AssertionError("third parties were searched")

    monkeypatch.setattr(loader, "distributions", searches)
    monkeypatch.setenv("DRAFTWOOD_STRICT_PLUGINS", "nonsense")
    generation._default_verifier.cache_clear()
    assert isinstance(Pipeline(target()).engine.verifier, Match)
    with pytest.raises((AssertionError, PluginError)):  # negative control
        load_plugins()


def test_parts_built_by_hand_and_by_name_decode_alike(bundled: Registry, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text("\n".join(f"{key}: {value}" for key, value in DOCUMENT.items()))
    loaded = load_pipeline(file, target=target(), registry=bundled)
    parts = {
        kind.value: build_component(
            kind,
            DOCUMENT[kind.value]["use"],
            registry=bundled,
            **{key: value for key, value in DOCUMENT[kind.value].items() if key != "use"},
        )
        for kind in Kind
    }
    options = {"max_new_tokens": 9, "temperature": 1.0, "seed": 3}
    by_hand = Pipeline(target(), **parts)
    assert loaded.generate([1, 2], **options).tokens == by_hand.generate([1, 2], **options).tokens
