"""Whole toy pipelines by name: a cell of the matrix that losslessness is proven over."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from attrs import frozen

from draftwood.core.draws import Draws
from draftwood.core.engine import Engine
from draftwood.core.interfaces import (
    BudgetController,
    CostProbe,
    Drafter,
    TreePolicy,
    Verifier,
)
from draftwood.core.options import GenerationOptions
from draftwood.core.registry.plugin import ProposalForm
from draftwood.plugins.controllers.fixed import Fixed
from draftwood.plugins.controllers.options import FixedOptions, RooflineOptions
from draftwood.plugins.controllers.roofline import Roofline
from draftwood.plugins.controllers.roofline.prices import Prices
from draftwood.plugins.controllers.roofline.probing import nominal
from draftwood.plugins.trees.best_first import BestFirst
from draftwood.plugins.trees.branches import Branches, Lottery
from draftwood.plugins.trees.chain import Chain
from draftwood.plugins.trees.dynamic import Dynamic
from draftwood.plugins.trees.options import (
    BestFirstOptions,
    ChainOptions,
    DynamicOptions,
    SampledOptions,
    StaticOptions,
)
from draftwood.plugins.trees.sampled import Sampled
from draftwood.plugins.trees.static import Static
from draftwood.plugins.verifiers.match import Match
from draftwood.plugins.verifiers.multi_round import MultiRound
from draftwood.plugins.verifiers.ratio import Ratio
from draftwood.plugins.verifiers.traversal import Traversal
from draftwood.testing.exact import Comparison, compare
from draftwood.testing.oracle import ScriptedClock
from draftwood.testing.toys import (
    DEPTH,
    Adversary,
    RepetitionPenalty,
    seeded,
    toy_drafter,
    toy_target,
)

PROMPT = (0, 1)
HORIZON = DEPTH + 2
"""A second round starts from every kind of verdict on a path of DEPTH."""

FORMS: tuple[ProposalForm, ...] = ("factorized", "mixture", "markov", "autoregressive")

TREES: Mapping[str, tuple[Draws, Callable[[], TreePolicy]]] = {
    "chain": (Draws.DETERMINISTIC, partial(Chain, ChainOptions())),
    "static": (
        Draws.DETERMINISTIC,
        partial(Static, StaticOptions(paths=((0,), (1,), (0, 0), (1, 0)))),
    ),
    "dynamic": (
        Draws.DETERMINISTIC,
        partial(Dynamic, DynamicOptions(top_k=2, depth=2, total_tokens=4)),
    ),
    "best_first": (Draws.DETERMINISTIC, partial(BestFirst, BestFirstOptions(max_nodes=4))),
    "sampled-chain": (Draws.CHAIN, partial(Sampled, SampledOptions())),
    "sampled-iid": (Draws.IID, partial(Sampled, SampledOptions(widths=(2, 1), replacement=True))),
    "sampled-without": (Draws.WITHOUT_REPLACEMENT, partial(Sampled, SampledOptions(widths=(2, 1)))),
}
"""Trees of depth <= 2 and at most 4 nodes, with how their nodes are chosen; over any
distribution."""

MIXTURE_TREES: Mapping[str, tuple[Draws, Callable[[], TreePolicy]]] = {
    "branches": (Draws.DETERMINISTIC, Branches),
    "lottery": (Draws.CHAIN, Lottery),
}
"""Trees that only a mixture has."""

EVERY_TREE = {**TREES, **MIXTURE_TREES}

VERIFIERS: Mapping[str, tuple[frozenset[Draws], Callable[[], Verifier]]] = {
    "match": (frozenset(Draws), Match),
    "ratio": (frozenset({Draws.CHAIN}), Ratio),
    "multi_round": (frozenset(Draws) - {Draws.DETERMINISTIC}, MultiRound),
    "traversal": (frozenset(Draws) - {Draws.DETERMINISTIC}, Traversal),
}
"""The bundled rules, with the draws that they have a distribution for."""


class _ToyRoofline(Roofline):
    """Starts from counted prices: what was measured on a made-up machine must not be stored."""

    def init(self, costs: CostProbe) -> Prices:
        return nominal(costs)


CONTROLLERS: Mapping[str, Callable[[], BudgetController[Any, Any]]] = {
    "fixed": partial(Fixed, FixedOptions(nodes=4)),
    "roofline": partial(_ToyRoofline, RooflineOptions(max_nodes=4)),
    "adversarial": Adversary,
}

TEMPERATURES = (0.0, 0.5, 1.0, 1.5)

FILTERS: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "top_k": {"top_k": 2},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.3},
}


@frozen
class Cell:
    """A pipeline over three tokens, by the names of its parts; seed: of its random distributions.

    Every value is a name in one of this module's tables, so that a failure is repeated by its
    text: `Cell('mixture', 'chain', 'match').compare()`.
    """

    drafter: ProposalForm = "factorized"
    tree: str = "chain"
    verifier: str = "match"
    controller: str = "fixed"
    temperature: float = 1.0
    filters: str = "none"
    penalty: bool = False
    seed: int = 0

    @property
    def refused(self) -> bool:
        """Whether the tree does not grow from the drafter's distribution, or the verifier has no
        distribution for the tree's draws."""
        if self.tree in MIXTURE_TREES and self.drafter != "mixture":
            return True
        return EVERY_TREE[self.tree][0] not in VERIFIERS[self.verifier][0]

    @property
    def options(self) -> GenerationOptions:
        return GenerationOptions(temperature=self.temperature, **FILTERS[self.filters])

    @property
    def processors(self) -> tuple[RepetitionPenalty, ...]:
        return (RepetitionPenalty(),) if self.penalty else ()

    def engine(
        self,
        drafter: Drafter | None = None,
        tree: TreePolicy | None = None,
        verifier: Verifier | None = None,
        controller: BudgetController[Any, Any] | None = None,
    ) -> Engine:
        """The pipeline, with these parts in place of its own. Its clock follows a script of
        slow and fast stages that its seed chooses."""
        script = seeded("clock", self.seed).choices((2.0**-13, 2.0**-5), k=5)
        return Engine(
            toy_target(self.seed),
            verifier or VERIFIERS[self.verifier][1](),
            drafter or toy_drafter(self.drafter, self.seed),
            tree or EVERY_TREE[self.tree][1](),
            controller or CONTROLLERS[self.controller](),
            ScriptedClock(script),
        )

    def compare(self, **parts: Any) -> Comparison:
        """Its exact distribution beside the target's; parts: as `engine` takes."""
        return compare(self.engine(**parts), PROMPT, HORIZON, self.options, self.processors)

    def check(self, **parts: Any) -> None:
        """Raise AssertionError, with the first wrong prefix and this cell, if it is biased."""
        comparison = self.compare(**parts)
        if comparison.prefix is not None:
            named = "".join(f"\n  with {kind} {part}" for kind, part in parts.items() if part)
            raise AssertionError(f"{comparison}\n  pipeline: {self}{named}")
