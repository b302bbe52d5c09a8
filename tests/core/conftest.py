"""A registry of plugins with every kind of trait and without code."""

from enum import Enum
from pathlib import Path
from typing import Literal

import pytest
from attrs import Attribute, field, frozen
from attrs.validators import ge

from draftwood.core.draws import Draws
from draftwood.core.registry.plugin import (
    ControllerTraits,
    DrafterTraits,
    Kind,
    Plugin,
    TreeTraits,
    VerifierTraits,
)
from draftwood.core.registry.registry import PluginRecord, PluginSource, Registered, Registry


class Mode(Enum):
    FAST = "fast"
    EXACT = "exact"


@frozen
class Inner:
    depth: int = field(default=1, validator=ge(1))
    scale: float = 1.0


@frozen
class BlockOptions:
    checkpoint: Path | str
    block_size: int = field(default=16, validator=ge(2))
    taps: tuple[int, ...] = (0, 1)
    hidden: int | None = None
    layers: int | None = None
    vocabulary: int | None = None


@frozen
class LookupOptions:
    max_ngram: int = 3
    min_ngram: int = 1

    def __attrs_post_init__(self) -> None:
        if self.min_ngram > self.max_ngram:
            raise ValueError(f"min_ngram {self.min_ngram} is above max_ngram {self.max_ngram}")


@frozen
class BestFirstOptions:
    max_nodes: int = field(default=64, validator=ge(1))
    temperature: float | None = None
    exact: bool = False
    mode: Mode = Mode.FAST
    form: Literal["auto", "search"] = "auto"
    inner: Inner = Inner()
    paths: tuple[tuple[int, ...], ...] = ()
    pair: tuple[int, float] = (1, 1.0)
    count: Literal["auto"] | int = "auto"
    log: Path | None = None
    even: int = field(default=0)

    @even.validator
    def _even(self, attribute: "Attribute[int]", value: int) -> None:
        if value % 2:
            raise ValueError(f"{attribute.name} must be even: {value}")


@frozen
class NoOptions:
    """A plugin without options."""


@frozen
class RuleOptions:
    rule: Literal["match", "ratio", "multi_round"] = "match"


@frozen
class NodesOptions:
    nodes: int = field(default=8, validator=ge(0))


def _registered(kind: Kind, name: str, options: type, traits: object) -> Registered:
    give = traits if callable(traits) else lambda _: traits
    plugin = Plugin(name, f"the {name} {kind}", options, "nowhere:Nothing", give)
    return Registered(kind, plugin, PluginSource("draftwood", "0", "test", bundled=True))


@pytest.fixture
def registry() -> Registry:
    """A registry of plugins that cannot be built; configuration never builds one."""
    deterministic = TreeTraits(Draws.DETERMINISTIC)
    any_draws = frozenset(Draws)
    parts = [
        _registered(
            Kind.DRAFTER,
            "block",
            BlockOptions,
            lambda o: DrafterTraits(
                "factorized",
                o.block_size - 1,
                taps=o.taps,
                target_hidden_size=o.hidden,
                target_layers=o.layers,
                vocab_size=o.vocabulary,
            ),
        ),
        _registered(Kind.DRAFTER, "ngram", LookupOptions, DrafterTraits("lookup", 8)),
        _registered(Kind.TREE, "best_first", BestFirstOptions, deterministic),
        _registered(Kind.TREE, "chain", NoOptions, deterministic),
        _registered(
            Kind.TREE,
            "sampled",
            NodesOptions,
            TreeTraits(Draws.IID, frozenset({"factorized", "mixture"})),
        ),
        _registered(Kind.CONTROLLER, "fixed", NodesOptions, ControllerTraits()),
        _registered(Kind.CONTROLLER, "roofline", NoOptions, ControllerTraits(timed=True)),
        _registered(Kind.CONTROLLER, "timed", NoOptions, ControllerTraits(timed=True)),
        _registered(
            Kind.VERIFIER,
            "match",
            NoOptions,
            VerifierTraits(frozenset({Draws.DETERMINISTIC}), seed_parity=True),
        ),
        _registered(
            Kind.VERIFIER,
            "auto",
            RuleOptions,
            lambda o: VerifierTraits(any_draws, seed_parity=o.rule == "match"),
        ),
        _registered(Kind.VERIFIER, "multi_round", NoOptions, VerifierTraits(any_draws)),
        _registered(
            Kind.VERIFIER,
            "drawn",
            NoOptions,
            VerifierTraits(any_draws - {Draws.DETERMINISTIC}),
        ),
        _registered(
            Kind.VERIFIER,
            "kernel",
            NoOptions,
            VerifierTraits(any_draws, seed_parity=True, devices=frozenset({"cuda"})),
        ),
    ]
    broken = PluginRecord(None, "foo", "foo-spec", "0.2", "failed", "No module named 'flash_attn'")
    return Registry(tuple(parts), (broken,))
