"""The bundled parts in every combination, and the comparison that all parity tests share."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from attrs import frozen

from draftwood.core.build import build_component
from draftwood.core.generation import Generation, Pipeline
from draftwood.core.interfaces import CostProbe, Target
from draftwood.core.registry.loader import installed
from draftwood.core.registry.plugin import Kind
from draftwood.plugins.controllers.measured import Measured
from draftwood.plugins.controllers.options import MeasuredOptions, RooflineOptions
from draftwood.plugins.controllers.roofline import Roofline
from draftwood.testing import ScriptedClock, ScriptedCosts

from .models import VOCAB, prompt_of, target_of
from .scripted import scripted, scripted_mixture

NEW = 210
"""New tokens of a text: through the window of every prompt and far past it."""

TREES: dict[str, tuple[str, dict[str, Any]]] = {
    "chain": ("chain", {}),
    "static": ("static", {}),
    "search": ("best_first", {"max_nodes": 24, "form": "search"}),
    "by_level": ("best_first", {"max_nodes": 24, "form": "by_level"}),
    "dynamic": ("dynamic", {"top_k": 4, "depth": 6, "total_tokens": 24}),
    "sampled-chain": ("sampled", {}),
    "sampled-tree": ("sampled", {"widths": (3, 2, 1, 1)}),
    "sampled-iid": ("sampled", {"widths": (3, 2, 1, 1), "replacement": True}),
    "branches": ("branches", {}),
    "lottery": ("lottery", {}),
}
MIXTURES = ("branches", "lottery", "by_level")
"""Trees that are grown over a mixture here; `by_level` could do without."""

CONTROLLERS = ("fixed", "measured", "roofline-nominal", "roofline-wall")
VERIFIERS = ("match", "ratio", "multi_round", "traversal")
CLOCK = (1e-3, 2e-3, 5e-4, 8e-3)


class ScriptedRoofline(Roofline):
    """`roofline` with a script for a clock and for the target's prices: budgets go up and down
    from round to round, the same way on every machine."""

    def __init__(self) -> None:
        options = RooflineOptions(max_nodes=24, refresh=True)
        super().__init__(options, ScriptedClock((0.1,)))

    def init(self, costs: CostProbe) -> Any:
        return super().init(ScriptedCosts())


class ScriptedMeasured(Measured):
    """`measured` on the same script."""

    def __init__(self) -> None:
        super().__init__(MeasuredOptions(max_nodes=24, refresh=True), ScriptedClock((0.1,)))

    def init(self, costs: CostProbe) -> Any:
        return super().init(ScriptedCosts())


def controller(name: str) -> Any:
    if name == "fixed":
        return build_component(Kind.CONTROLLER, "fixed", nodes=16)
    if name == "roofline-wall":
        return ScriptedRoofline()
    if name == "measured":
        return ScriptedMeasured()
    return build_component(Kind.CONTROLLER, "roofline", clock="nominal", max_nodes=24)


def tree(name: str) -> Any:
    plugin, options = TREES[name]
    return build_component(Kind.TREE, plugin, **options)


def has_a_distribution_for(verifier: str, tree_name: str) -> bool:
    """Whether a pipeline may combine the two."""
    name, options = TREES[tree_name]
    rule, shape = installed().get(Kind.VERIFIER, verifier), installed().get(Kind.TREE, name)
    draws = shape.plugin.traits(shape.plugin.options(**options)).draws  # type: ignore[union-attr]
    return draws in rule.plugin.traits(rule.plugin.options()).draws  # type: ignore[union-attr]


@frozen
class Case:
    """A target, a prompt's length, and generation options as sorted pairs (hashable)."""

    architecture: str
    attention: str = "sdpa"
    length: int = 20
    dtype: torch.dtype = torch.float64
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def target(self) -> Target:
        return target_of(self.architecture, self.attention, self.dtype)

    @property
    def prompt(self) -> tuple[int, ...]:
        return prompt_of(self.length)

    @property
    def asked(self) -> dict[str, Any]:
        return {"max_new_tokens": NEW, "seed": 11, **dict(self.options)}


@cache
def plain(case: Case) -> tuple[int, ...]:
    """New tokens of plain decoding: the target alone, one token a round."""
    result = Pipeline(case.target).generate(case.prompt, **case.asked)
    assert result.stats.drafted == 0
    return result.tokens


def speculative(
    case: Case, tree_name: str, controller_name: str = "fixed", verifier: str | Any = "match"
) -> Generation:
    """The same request with drafts of the plain text, a share of them wrong."""
    text = (*case.prompt, *plain(case))
    judge = build_component(Kind.VERIFIER, verifier) if isinstance(verifier, str) else verifier
    drafter = scripted_mixture if tree_name in MIXTURES else scripted
    pipeline = Pipeline(
        case.target,
        drafter(text, VOCAB),
        tree(tree_name),
        controller(controller_name),
        judge,
        clock=ScriptedClock(CLOCK),
    )
    return pipeline.generate(case.prompt, **case.asked)


def speculated(result: Generation) -> Generation:
    """Refuse a comparison that says nothing: drafts were made, taken and refused."""
    stats = result.stats
    assert result.speculation["ran"], result.speculation["reason"]
    assert stats.rounds > 0
    assert stats.accepted > 0
    assert stats.rejected > 0
    assert stats.committed + 1 == len(result.tokens)
    return result


def assert_same_text(case: Case, decode: Callable[[Case], Generation]) -> None:
    """The text is plain decoding's, token for token, and speculation had a part in it."""
    result = speculated(decode(case))
    expected = plain(case)
    at = first_difference(result.tokens, expected)
    assert at is None, f"token {at} of {len(expected)} differs: {case}"


def first_difference(one: Any, other: Any) -> int | None:
    """Index of the first token that differs; a shorter text differs where it ends."""
    if tuple(one) == tuple(other):
        return None
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
