"""In float64, greedy text is plain decoding's and `generate`'s, through and past the windows."""

import pytest

from draftwood.core.registry.loader import installed
from draftwood.core.registry.plugin import Kind

from .models import ARCHITECTURES, ATTENTIONS, WINDOW, WINDOWED, generated
from .parts import (
    CONTROLLERS,
    NEW,
    TREES,
    VERIFIERS,
    Case,
    assert_same_text,
    has_a_distribution_for,
    plain,
    speculative,
)

CASES = [
    *(Case(name, attention) for name in ARCHITECTURES for attention in ATTENTIONS),
    *(
        Case(name, attention, length)
        for name in WINDOWED
        for attention in ATTENTIONS
        for length in (10, WINDOW, 40)
    ),
]
IDS = [f"{case.architecture}-{case.attention}-{case.length}" for case in CASES]


@pytest.mark.covers("sliding-window")
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_plain_greedy_text_equals_generates_and_varies(case: Case) -> None:
    text = plain(case)
    assert len(text) == NEW >= 200
    assert list(text) == generated(
        case.architecture, case.attention, case.prompt, max_new_tokens=NEW
    )
    # A text that only repeats one token would be the same under many a wrong mask.
    assert len(set(text[NEW // 2 :])) >= 10


# Greedy distributions are one-hot, so every rule must give the same text, not only those that keep
# seeds.
PARTS = [
    (tree, controller, verifier)
    for tree in TREES
    for verifier in VERIFIERS
    if has_a_distribution_for(verifier, tree)
    for controller in CONTROLLERS
    if verifier == "match" or controller in ("fixed", "roofline-wall")
]


@pytest.mark.covers("greedy-parity")
@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize(("tree", "controller", "verifier"), PARTS)
def test_every_combination_of_parts_keeps_the_text(
    tree: str, controller: str, verifier: str, attention: str
) -> None:
    assert_same_text(
        Case("mistral", attention),
        lambda case: speculative(case, tree, controller, verifier),
    )


# Which tree goes round with the cases; where there is nothing to vary but the model, a chain too.
BRANCHING = ("static", "search", "by_level", "sampled-tree")
PAIRS = [
    pytest.param(case, tree, id=f"{name}-{tree}")
    for number, (case, name) in enumerate(zip(CASES, IDS, strict=True))
    for tree in ("chain", BRANCHING[number % 4])[case.length != 20 :]
]


@pytest.mark.covers("sliding-window")
@pytest.mark.parametrize(("case", "tree"), PAIRS)
def test_every_architecture_and_prompt_length_keeps_the_text(case: Case, tree: str) -> None:
    assert_same_text(case, lambda case: speculative(case, tree))


def test_every_bundled_part_is_among_the_combinations() -> None:
    registry = installed()
    bundled = {
        kind: {
            entry.plugin.name
            for entry in registry.registered
            if entry.kind is kind and entry.source.bundled
        }
        for kind in (Kind.TREE, Kind.CONTROLLER)
    }
    assert bundled[Kind.TREE] == {plugin for plugin, _ in TREES.values()}
    assert bundled[Kind.CONTROLLER] == {name.partition("-")[0] for name in CONTROLLERS}
    on_any_device = {
        entry.plugin.name
        for entry in registry.registered
        if entry.kind is Kind.VERIFIER
        and entry.source.bundled
        and not entry.plugin.traits(entry.plugin.options()).devices  # type: ignore[union-attr]
    }
    # `triton` and `auto` have tests of their own, in the interpreter.
    assert on_any_device - {"triton", "auto"} == set(VERIFIERS)
