"""Whole toy pipelines by the names of their parts: the cells of the grid that is enumerated."""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from attrs import evolve, frozen

from draftwood.core.draws import Draws
from draftwood.core.engine import Engine, Request
from draftwood.core.interfaces import (
    BudgetController,
    CostProbe,
    Drafter,
    TreePolicy,
    Verifier,
)
from draftwood.core.options import GenerationOptions
from draftwood.core.randomness import Seeded
from draftwood.core.registry.plugin import ProposalForm
from draftwood.plugins.controllers.fixed import Fixed
from draftwood.plugins.controllers.options import FixedOptions, RooflineOptions
from draftwood.plugins.controllers.roofline import Roofline
from draftwood.plugins.controllers.roofline.cost_model import CostModel
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
from draftwood.plugins.verifiers.host_rules import HOST_RULES
from draftwood.plugins.verifiers.rules import RULE_DRAWS
from draftwood.testing.controllers import AdversarialController
from draftwood.testing.enumeration import Unrepeated
from draftwood.testing.exact import Comparison, Conditions, compare
from draftwood.testing.oracle import ScriptedClock
from draftwood.testing.toys import (
    DEPTH,
    VOCAB,
    RepetitionPenalty,
    seeded,
    toy_drafter,
    toy_target,
)

PROMPT = (0, 1)
HORIZON = DEPTH + 2
"""New tokens: a second round starts after every kind of verdict on a path of DEPTH."""

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
"""Trees of depth <= 2 and at most 4 nodes, over any form of proposal, with their draws."""

MIXTURE_TREES: Mapping[str, tuple[Draws, Callable[[], TreePolicy]]] = {
    "branches": (Draws.DETERMINISTIC, Branches),
    "lottery": (Draws.CHAIN, Lottery),
}
"""Trees that grow over a mixture only."""

EVERY_TREE = {**TREES, **MIXTURE_TREES}


VERIFIERS = HOST_RULES


def trees_with(draws: Collection[Draws]) -> list[str]:
    """Names in TREES of the trees whose nodes are chosen in one of these ways."""
    return [name for name, (drawn, _) in TREES.items() if drawn in draws]


def rules_for(draws: Draws) -> list[str]:
    """Names in VERIFIERS of the rules that verify these draws."""
    return [name for name, verified in RULE_DRAWS.items() if draws in verified]


@frozen
class Shape:
    """How large a toy is: where in a tree, and how late in a text, a fault would show.

    Attributes:
        vocab: Number of tokens.
        depth: Of the deepest node.
        nodes: Most draft nodes of a tree.
        horizon: Number of new tokens.
        prompt: Token ids.
        ties: Whether tokens of the target are equally likely.
        trees: A tree of this shape by its draws.
    """

    vocab: int = VOCAB
    depth: int = DEPTH
    nodes: int = 4
    horizon: int = HORIZON
    prompt: tuple[int, ...] = PROMPT
    ties: bool = False
    trees: Mapping[Draws, Callable[[], TreePolicy]] = {
        Draws.DETERMINISTIC: TREES["best_first"][1],
        Draws.CHAIN: TREES["sampled-chain"][1],
        Draws.IID: TREES["sampled-iid"][1],
        Draws.WITHOUT_REPLACEMENT: TREES["sampled-without"][1],
    }


def _drawn(widths: tuple[int, ...]) -> Mapping[Draws, Callable[[], TreePolicy]]:
    return {
        Draws.CHAIN: partial(Sampled, SampledOptions()),
        Draws.IID: partial(Sampled, SampledOptions(widths=widths, replacement=True)),
        Draws.WITHOUT_REPLACEMENT: partial(Sampled, SampledOptions(widths=widths)),
    }


SHAPES: Mapping[str, Shape] = {
    "standard": Shape(),
    "deep": Shape(
        vocab=2,
        depth=5,
        nodes=6,
        horizon=6,
        trees={Draws.DETERMINISTIC: partial(Chain, ChainOptions()), **_drawn((1, 1, 1, 2, 1))},
    ),
    "wide": Shape(
        vocab=5,
        depth=1,
        horizon=3,
        trees={
            Draws.DETERMINISTIC: partial(Static, StaticOptions(paths=((0,), (1,), (2,), (3,)))),
            Draws.CHAIN: partial(Sampled, SampledOptions()),
            Draws.WITHOUT_REPLACEMENT: partial(Sampled, SampledOptions(widths=(4,))),
        },
    ),
    "repeated": Shape(
        depth=1,
        horizon=3,
        trees={Draws.IID: partial(Sampled, SampledOptions(widths=(4,), replacement=True))},
    ),
    "late": Shape(
        vocab=2,
        depth=1,
        nodes=2,
        horizon=7,
        prompt=tuple(seeded("late prompt").choices(range(2), k=62)),
        trees={Draws.DETERMINISTIC: partial(Chain, ChainOptions()), **_drawn((2,))},
    ),
    "ties": Shape(ties=True),
}
"""`deep`: a chain over two tokens. `wide`: a node of many children; `repeated`: some of them equal.
`late`: many rounds behind a long prompt. `ties`: equally likely tokens."""


def extreme_shapes(draws: Draws) -> list[str]:
    """Names in SHAPES, except "standard", of the shapes that have a tree with these draws."""
    return [name for name, shape in SHAPES.items() if name != "standard" and draws in shape.trees]


class _ToyRoofline(Roofline):
    """Starts from counted prices, since prices of a scripted machine must not be stored."""

    def init(self, costs: CostProbe) -> CostModel:
        return nominal(costs)


CONTROLLERS: Mapping[str, Callable[[], BudgetController[Any, Any]]] = {
    "fixed": partial(Fixed, FixedOptions(nodes=4)),
    "roofline": partial(_ToyRoofline, RooflineOptions(max_nodes=4)),
    "adversarial": AdversarialController,
}

TEMPERATURES = (0.0, 0.5, 1.0, 1.5)

FILTERS: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "top_k": {"top_k": 2},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.3},
}


@frozen
class ToyPipeline:
    """A pipeline over a few tokens. Every value is a name in one of this module's tables.

    A failure is repeated by its text: `ToyPipeline('mixture', 'chain', 'match').compare()`.

    Attributes:
        drafter: Form of the drafter's proposals.
        tree: Name in EVERY_TREE.
        verifier: Name in VERIFIERS.
        controller: Name in CONTROLLERS.
        temperature: Of target and drafter.
        filters: Name in FILTERS.
        penalty: Whether a repetition penalty is applied.
        seed: Of its random distributions.
        shape: Name in SHAPES; one other than "standard" has its own tree with the draws of `tree`.
    """

    drafter: ProposalForm = "factorized"
    tree: str = "chain"
    verifier: str = "match"
    controller: str = "fixed"
    temperature: float = 1.0
    filters: str = "none"
    penalty: bool = False
    seed: int = 0
    shape: str = "standard"

    @property
    def size(self) -> Shape:
        return SHAPES[self.shape]

    @property
    def refused(self) -> bool:
        """Whether the tree does not fit the drafter's form, or the verifier the tree's draws."""
        if EVERY_TREE[self.tree][0] not in self.size.trees:
            return True
        if self.tree in MIXTURE_TREES and self.drafter != "mixture":
            return True
        return EVERY_TREE[self.tree][0] not in RULE_DRAWS[self.verifier]

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
        """The pipeline, with the given parts instead of its own.

        Its clock follows a script of slow and fast stages that the seed chooses.
        """
        script = seeded("clock", self.seed).choices((2.0**-13, 2.0**-5), k=5)
        size = self.size
        draws, own_tree = EVERY_TREE[self.tree]
        if self.shape != "standard":
            own_tree = size.trees[draws]
            controller = controller or Fixed(FixedOptions(nodes=size.nodes))
        return Engine(
            toy_target(self.seed, size.vocab, size.ties),
            verifier or VERIFIERS[self.verifier](),
            drafter or toy_drafter(self.drafter, self.seed, size.depth, size.vocab),
            tree or own_tree(),
            controller or CONTROLLERS[self.controller](),
            ScriptedClock(script),
        )

    def compare(self, **parts: Any) -> Comparison:
        """Compare its exact distribution with the target's; parts: as for `engine`."""
        return self.compare_engine(self.engine(**parts))

    def compare_engine(self, engine: Engine) -> Comparison:
        """Compare an engine's exact distribution with its target's, under these conditions."""
        conditions = Conditions(options=self.options, processors=self.processors)
        return compare(engine, self.size.prompt, self.size.horizon, **conditions)

    def decode(self, tokens: int, **parts: Any) -> list[int]:
        """A text of `tokens` new tokens, in which no random number may be drawn twice.

        Raises:
            TestingError: If one key of the randomness is used for two draws.
        """
        engine = self.engine(**parts)
        options = evolve(self.options, max_new_tokens=tokens)
        randomness = Unrepeated(Seeded(self.seed))
        run = engine.open(Request(self.size.prompt, options, randomness, self.processors))
        while run.finish_reason is None:
            engine.step([run])
        return run.new_ids

    def check(self, **parts: Any) -> None:
        """Check that it is lossless; parts: as for `engine`.

        Raises:
            AssertionError: If it is biased, with the first wrong prefix and this pipeline.
        """
        comparison = self.compare(**parts)
        if comparison.prefix is not None:
            named = "".join(f"\n  with {kind} {part}" for kind, part in parts.items() if part)
            raise AssertionError(f"{comparison}\n  pipeline: {self}{named}")
