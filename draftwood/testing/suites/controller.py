"""What every budget controller must hold."""

from typing import Any, ClassVar

import pytest

from draftwood.core.engine import Request
from draftwood.core.interfaces import BudgetController, ControllerState, CostProbe
from draftwood.core.randomness import Seeded
from draftwood.core.registry.plugin import Kind
from draftwood.core.tree import TokenTree
from draftwood.core.values import Limits, RoundContext, RoundStats
from draftwood.testing import strategies
from draftwood.testing.cells import PROMPT, Cell
from draftwood.testing.lossless.exact import Capped
from draftwood.testing.suites.base import Suite

State = ControllerState[Any, Any]


class BudgetControllerSuite(Suite):
    """Budgets are within their trees, decisions are pure, and nothing shows in the output
    distribution."""

    kind: ClassVar[Kind] = Kind.CONTROLLER

    @pytest.fixture(autouse=True)
    def _own_cache(self, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """Prices of made-up machines stay here."""
        monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path))

    def test_decisions_are_within_their_limits_and_pure(self) -> None:
        """Over texts of many rounds: the same state gives the same decision, and a state is never
        written to."""

        def check(cell: Cell) -> None:
            engine = cell.engine(controller=_Checked(self.build()))
            options = Request(PROMPT, _long(cell), Seeded(cell.seed))
            run = engine.open(options)
            while run.finish_reason is None:
                engine.step([run])

        self.search(strategies.cells(verifiers=("match",), controllers=("fixed",)), check)

    def test_every_request_starts_from_the_same_knowledge(self) -> None:
        controller = self.build()
        assert controller.open() == controller.open()
        hash(controller.open())

    def test_the_output_distribution_is_the_targets(self) -> None:
        def check(cell: Cell) -> None:
            cell.check(controller=Capped(self.build(), nodes=4))

        self.search(strategies.cells(controllers=("fixed",)), check)

    def test_it_can_say_why_speculation_was_off(self) -> None:
        controller = self.build()
        engine = Cell().engine(controller=controller)
        said = controller.explain(ControllerState(engine.machine, controller.open()))
        assert said is None or said.strip()


class _Checked(BudgetController[Any, Any]):
    """Asks twice, and holds the answers to the contract."""

    def __init__(self, inner: BudgetController[Any, Any]) -> None:
        self.inner = inner

    def init(self, costs: CostProbe) -> Any:
        return self.inner.init(costs)

    def open(self) -> Any:
        return self.inner.open()

    def before_draft(self, ctx: RoundContext, state: State) -> Limits:
        key = hash(state)
        limits = self.inner.before_draft(ctx, state)
        assert limits == self.inner.before_draft(ctx, state)
        assert limits.nodes >= 0
        assert limits.depth is None or limits.depth >= 1
        assert hash(state) == key
        return limits

    def should_expand(self, growth: TokenTree, ctx: RoundContext, state: State) -> bool:
        return self.inner.should_expand(growth, ctx, state)

    def choose(self, tree: TokenTree, ctx: RoundContext, state: State) -> int:
        key = hash(state)
        nodes = self.inner.choose(tree, ctx, state)
        assert nodes == self.inner.choose(tree, ctx, state)
        assert 0 <= nodes <= tree.nodes
        assert hash(state) == key
        return nodes

    def observe(self, stats: RoundStats, state: State) -> State:
        key = hash(state)
        after = self.inner.observe(stats, state)
        assert after == self.inner.observe(stats, state)
        assert hash(state) == key
        return after


def _long(cell: Cell) -> Any:
    from attrs import evolve

    return evolve(cell.options, max_new_tokens=40)
