"""Controllers for tests: one that does everything the contract allows, and wrappers of another."""

from typing import Any

from attrs import evolve

from draftwood.core.interfaces import BudgetController, ControllerState, CostProbe
from draftwood.core.tree import TokenTree
from draftwood.core.values import Limits, RoundContext, RoundStats

AnyState = ControllerState[Any, Any]


class AdversarialController(BudgetController[int, int]):
    """Budgets that depend on everything a controller may see.

    They follow committed counts, the last verdict and the tree's own tokens, in a way that has
    nothing to do with speed.
    """

    def init(self, costs: CostProbe) -> int:
        return 1

    def open(self) -> int:
        return 2

    def before_draft(self, ctx: RoundContext, state: ControllerState[int, int]) -> Limits:
        return Limits((ctx.context + state.machine + 2 * state.request) % 5)

    def should_expand(
        self, growth: TokenTree, ctx: RoundContext, state: ControllerState[int, int]
    ) -> bool:
        return (sum(growth.token_list) + state.machine) % 3 != 0

    def choose(self, tree: TokenTree, ctx: RoundContext, state: ControllerState[int, int]) -> int:
        return (sum(tree.token_list) + state.request) % (tree.nodes + 1)

    def observe(
        self, stats: RoundStats, state: ControllerState[int, int]
    ) -> ControllerState[int, int]:
        return ControllerState(
            (state.machine + stats.accepted) % 2, (state.request + (stats.verdict.bonus or 0)) % 3
        )


class WrappedController(BudgetController[Any, Any]):
    """Forwards every decision to another controller: a base for wrappers."""

    def __init__(self, inner: BudgetController[Any, Any]) -> None:
        self.inner = inner

    def init(self, costs: CostProbe) -> Any:
        return self.inner.init(costs)

    def open(self) -> Any:
        return self.inner.open()

    def before_draft(self, ctx: RoundContext, state: AnyState) -> Limits:
        return self.inner.before_draft(ctx, state)

    def should_expand(self, growth: TokenTree, ctx: RoundContext, state: AnyState) -> bool:
        return self.inner.should_expand(growth, ctx, state)

    def choose(self, tree: TokenTree, ctx: RoundContext, state: AnyState) -> int:
        return self.inner.choose(tree, ctx, state)

    def observe(self, stats: RoundStats, state: AnyState) -> AnyState:
        return self.inner.observe(stats, state)


class CappedController(WrappedController):
    """Allows at most `nodes` nodes, so that a round can be enumerated.

    The limit is set before the round, which changes no distribution.
    """

    def __init__(self, inner: BudgetController[Any, Any], nodes: int) -> None:
        super().__init__(inner)
        self.nodes = nodes

    def before_draft(self, ctx: RoundContext, state: AnyState) -> Limits:
        limits = super().before_draft(ctx, state)
        return evolve(limits, nodes=min(limits.nodes, self.nodes))
