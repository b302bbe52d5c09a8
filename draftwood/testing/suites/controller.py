"""The contract of every budget controller."""

from typing import Any, ClassVar

import pytest
from attrs import evolve

from draftwood.core.engine import Request
from draftwood.core.errors import PluginError
from draftwood.core.interfaces import ControllerState
from draftwood.core.randomness import Seeded
from draftwood.core.registry.plugin import Kind
from draftwood.core.tree import TokenTree
from draftwood.core.values import Limits, RoundContext, RoundStats
from draftwood.testing import strategies
from draftwood.testing.controllers import AnyState, CappedController, WrappedController
from draftwood.testing.suites.base import Suite
from draftwood.testing.toy_pipelines import PROMPT, ToyPipeline


class BudgetControllerSuite(Suite):
    """Budgets fit their trees, decisions are pure, and the output distribution is the target's."""

    kind: ClassVar[Kind] = Kind.CONTROLLER

    @pytest.fixture(autouse=True)
    def _own_cache(self, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """Prices of scripted machines are stored in a temporary folder."""
        monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path))

    def test_decisions_are_within_their_limits_and_pure(self) -> None:
        """Over texts of many rounds: the same state gives the same decision and never changes."""

        def check(toy: ToyPipeline) -> None:
            engine = toy.engine(controller=_CheckedController(self.build()))
            options = evolve(toy.options, max_new_tokens=40)
            run = engine.open(Request(PROMPT, options, Seeded(toy.seed)))
            try:
                while run.finish_reason is None:
                    engine.step([run])
            except PluginError as error:
                if isinstance(error.__cause__, AssertionError):
                    raise error.__cause__ from None
                raise

        self.search(strategies.toy_pipelines(verifiers=("match",), controllers=("fixed",)), check)

    def test_every_request_starts_from_the_same_state(self) -> None:
        controller = self.build()
        assert controller.open() == controller.open()
        hash(controller.open())

    def test_the_output_distribution_is_the_targets(self) -> None:
        def check(toy: ToyPipeline) -> None:
            toy.check(controller=CappedController(self.build(), nodes=4))

        self.search(strategies.toy_pipelines(controllers=("fixed",)), check)

    def test_an_explanation_is_none_or_a_text(self) -> None:
        controller = self.build()
        engine = ToyPipeline().engine(controller=controller)
        explanation = controller.explain(ControllerState(engine.machine, controller.open()))
        assert explanation is None or explanation.strip()


class _CheckedController(WrappedController):
    """Makes each decision twice, and checks both against the contract."""

    def before_draft(self, ctx: RoundContext, state: AnyState) -> Limits:
        key = hash(state)
        limits = self.inner.before_draft(ctx, state)
        assert limits == self.inner.before_draft(ctx, state)
        assert limits.nodes >= 0
        assert limits.depth is None or limits.depth >= 1
        assert hash(state) == key
        return limits

    def choose(self, tree: TokenTree, ctx: RoundContext, state: AnyState) -> int:
        key = hash(state)
        nodes = self.inner.choose(tree, ctx, state)
        assert nodes == self.inner.choose(tree, ctx, state)
        assert 0 <= nodes <= tree.nodes
        assert hash(state) == key
        return nodes

    def observe(self, stats: RoundStats, state: AnyState) -> AnyState:
        key = hash(state)
        after = self.inner.observe(stats, state)
        assert after == self.inner.observe(stats, state)
        assert hash(state) == key
        return after
