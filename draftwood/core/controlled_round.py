"""The controller's part of one round, shared by the engine, offline replays and simulations."""

import operator
from typing import Any, SupportsIndex

from attrs import define, evolve, field

from draftwood.core.draws import Draws
from draftwood.core.interfaces import BudgetController, ControllerState
from draftwood.core.plugin_calls import call, plugin_error
from draftwood.core.tree import TokenTree
from draftwood.core.values import Limits, RoundContext, RoundStats, Timings, Verdict


@define(eq=False)
class ControlledRound:
    """Limits, then `should_expand` between levels, `cut`, `stats` and `observe`, in this order.

    Attributes:
        controller: Decides; None in plain decoding.
        state: The controller's, before the round.
        ctx: The round.
        limits: The controller's, and no deeper than tokens can still be committed; no nodes for a
            plain step.
        passes: Forward passes of the drafter's model so far.
        grown: Draft nodes before the cut.
    """

    controller: BudgetController[Any, Any] | None
    state: ControllerState[Any, Any]
    ctx: RoundContext
    limits: Limits = field(init=False)
    passes: int = field(default=0, init=False)
    grown: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.limits = Limits(0)
        if self.controller is None:
            return
        before_draft = self.controller.before_draft
        limits = call(Limits, before_draft, self.ctx, self.state)
        if not isinstance(limits.nodes, int) or limits.nodes < 0:
            reason = f"allowed {limits.nodes!r} draft nodes; a whole number from 0 is expected"
            raise plugin_error(before_draft, reason)
        room = self.ctx.remaining - 1  # the bonus token takes one
        depth = room if limits.depth is None else min(limits.depth, room)
        drafts = depth > 0 and limits.nodes > 0
        self.limits = evolve(limits, depth=depth) if drafts else Limits(0, 0)

    @property
    def next_last_draft(self) -> int | None:
        """`RoundContext.last_draft` of the next round."""
        if self.limits.nodes:
            return 0
        return None if self.ctx.last_draft is None else self.ctx.last_draft + 1

    def should_expand(self, growth: TokenTree) -> bool:
        """Whether the drafter's model runs for one more level; counts its passes."""
        assert self.controller
        expands = bool(call(object, self.controller.should_expand, growth, self.ctx, self.state))
        self.passes += expands
        return expands

    def cut(self, tree: TokenTree) -> TokenTree:
        """The part of the grown tree that is verified; a drawn tree is never cut."""
        assert self.controller
        self.grown = tree.nodes
        if tree.draws is not Draws.DETERMINISTIC:
            return tree
        ctx, choose = evolve(self.ctx, passes=self.passes), self.controller.choose
        nodes = operator.index(call(SupportsIndex, choose, tree, ctx, self.state))
        if not 0 <= nodes <= tree.nodes:
            raise plugin_error(choose, f"chose {nodes} of {tree.nodes} draft nodes")
        return tree.cut(nodes)

    def stats(
        self, request: int, tree: TokenTree, verdict: Verdict, committed: int, timings: Timings
    ) -> RoundStats:
        """The finished round.

        Args:
            request: Number of the request.
            tree: The verified tree.
            verdict: The decision about it.
            committed: Tokens that stop rules kept.
            timings: Seconds by stage.
        """
        return RoundStats(
            request=request,
            round=self.ctx.round,
            context=self.ctx.context,
            drafted=self.limits.nodes > 0,
            passes=self.passes,
            grown=self.grown,
            budget=tree.nodes,
            accepted=min(committed, len(verdict.accepted) - 1),
            committed=committed,
            tree=tree,
            verdict=verdict,
            timings=timings,
        )

    def observe(self, stats: RoundStats) -> ControllerState[Any, Any]:
        """The controller's state after the round."""
        if self.controller is None:
            return self.state
        return call(ControllerState, self.controller.observe, stats, self.state)
