"""Options of `union`: every installed drafter is a source, with its own options."""

import pytest
from attrs import evolve, field, frozen
from attrs.validators import ge

from draftwood.core.config.pipeline import Component, load_config
from draftwood.core.config.schema import pipeline_schema
from draftwood.core.errors import ConfigError
from draftwood.core.registry.loader import installed
from draftwood.core.registry.plugin import DrafterTraits, Kind, Plugin
from draftwood.core.registry.registry import PluginSource, Registered, Registry


@frozen
class EchoOptions:
    """Options of a third party's drafter."""

    repeat: int = field(default=2, validator=ge(1))


@pytest.fixture(scope="module")
def registry() -> Registry:
    """The installed plugins and a third party's drafter."""
    plugin = Plugin(
        "echo",
        "repeats the anchor",
        EchoOptions,
        "os.path:join",
        lambda options: DrafterTraits("lookup", options.repeat),
    )
    echo = Registered(Kind.DRAFTER, plugin, PluginSource("echo-drafter", "1.0", "echo"))
    return evolve(installed(), registered=(*installed().registered, echo))


def drafter(registry: Registry, **sources: object) -> Component:
    document = {"target": {"model": "builtin"}, "drafter": {"use": "union", **sources}}
    part = load_config(document, registry=registry).drafter
    assert part is not None
    return part


def problems(registry: Registry, **sources: object) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        drafter(registry, **sources)
    return {problem.path: problem.message for problem in caught.value.problems}


def test_a_third_partys_drafter_is_a_source_with_its_options_and_traits(registry: Registry) -> None:
    part = drafter(registry, echo={"repeat": 40}, dflash={"checkpoint": "builtin"})
    assert part.options.sources["echo"] == EchoOptions(40)
    assert list(part.options.sources) == ["echo", "dflash"]
    assert part.traits.max_depth == 40
    assert part.options.sources.entries["echo"].source.distribution == "echo-drafter"


def test_options_of_sources_are_validated_like_those_of_a_drafter(registry: Registry) -> None:
    found = problems(registry, ngram={"max_ngramm": 3}, echo={"repeat": 0})
    assert "did you mean 'max_ngram'" in found["drafter.ngram.max_ngramm"]
    assert "must be >= 1" in found["drafter.echo.repeat"]


def test_unknown_sources_and_unions_are_refused_by_name(registry: Registry) -> None:
    found = problems(registry, ngram={}, ecco={}, union={})
    assert "did you mean 'echo'" in found["drafter.ecco"]
    assert found["drafter.union"] == "drafter 'union' cannot be part of union"


def test_the_schema_lists_every_drafter_but_unions_beside_use(registry: Registry) -> None:
    branches = pipeline_schema(registry)["properties"]["drafter"]["allOf"]
    (union,) = (b["then"] for b in branches if b["if"]["properties"]["use"]["const"] == "union")
    sources = set(registry.names(Kind.DRAFTER)) - {"union"}
    assert set(union["properties"]) == {"use", *sources}
    assert "repeat" in union["properties"]["echo"]["properties"]
