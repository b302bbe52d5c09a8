"""The budget that maximises tokens per second, by expected tokens and predicted times."""

import math
from abc import abstractmethod
from typing import Literal

from attrs import evolve, field, frozen

from draftwood.core.interfaces.controller import (
    BudgetController,
    ControllerState,
    CostProbe,
    Forecast,
)
from draftwood.core.tree import TokenTree
from draftwood.core.values import Limits, RoundContext, RoundStats
from draftwood.plugins.controllers.roofline.acceptance import AcceptanceEstimate
from draftwood.plugins.controllers.roofline.cost_model import CostModel
from draftwood.plugins.controllers.roofline.levels import next_level_pays
from draftwood.plugins.controllers.roofline.speculation import (
    MAX_PAUSE,
    MIN_ROUNDS,
    SpeculationState,
)

FIRST_CAP, MIN_CAP = 64, 16
"""Most nodes grown in a request's first round, and the least cap of any: the gain of a larger tree
is only seen by growing it."""

MAX_DISABLED = 2
"""Times in a row that speculation was switched off, after which requests start with a trial: the
state of a request ends with it, but this holds for the drafter."""

TRIAL_CAP = 8
"""Most nodes of a trial's trees: small trees are cheap and show whether speculation pays."""

RECENT_BUDGETS = 8
"""Budgets that the next tree's cap follows."""

CAP_MARGIN = 1.25
"""The cap over the second largest of them, so that one round of high scores does not make eight
trees large. Nodes that are grown and not verified cost host time, and drafter forwards where each
level needs one."""

TRIAL_MEMORY = 0.2
"""Share of the acceptance counts that a trial after a pause keeps."""

PACE_DECAY = 0.9

_NEW_ACCEPTANCE = AcceptanceEstimate()


@frozen
class RequestState:
    """What is known of one request. Hashable.

    Attributes:
        acceptance: Of its trees.
        speculation: Whether it pays.
        budgets: Recent ones, of rounds with a draft.
        tokens: Decayed total of committed tokens, for the pace.
        seconds: Decayed total of predicted round times.
        passes: Forward passes of the drafter's model in the last round with a draft.
        plain_before: Whether the round before had no draft.
    """

    acceptance: AcceptanceEstimate = field(factory=AcceptanceEstimate)
    speculation: SpeculationState = field(factory=SpeculationState)
    budgets: tuple[int, ...] = ()
    tokens: float = 0.0
    seconds: float = 0.0
    passes: int = 1
    plain_before: bool = True

    @property
    def scoring(self) -> AcceptanceEstimate:
        """The estimate that scores trees; a trial uses that of a new request."""
        return self.acceptance if self.speculation.on else _NEW_ACCEPTANCE


State = ControllerState[CostModel, RequestState]


class CostBasedController(BudgetController[CostModel, RequestState]):
    """Two decisions a round (BASTION, arXiv 2605.29727), and one per level of some drafters.

    Before drafting: whether speculation pays against plain decoding. Between levels that cost a
    drafter forward each: whether the next one pays. After growing: the budget N that maximises
    S(N) = A^(N) / (T_draft + T_grow + T_v(N+1) + T_other).

    Args:
        max_nodes: Largest budget.
        objective: What the budget maximises, see `RooflineOptions`.
        learns: Whether the times of rounds update the cost model.
    """

    def __init__(
        self, max_nodes: int, objective: Literal["speed", "rate"], *, learns: bool
    ) -> None:
        self._max_nodes, self._objective, self._learns = max_nodes, objective, learns

    @abstractmethod
    def cost_model(self, costs: CostProbe) -> CostModel:
        """The cost model that a new pipeline starts with."""

    def init(self, costs: CostProbe) -> CostModel:
        return evolve(self.cost_model(costs), sizes=costs.sizes)

    def open(self) -> RequestState:
        return RequestState()

    def before_draft(self, ctx: RoundContext, state: State) -> Limits:
        """No nodes while speculation is paused; else a cap by the recent budgets, and floors for
        scores that cannot pay."""
        request, costs = state.request, state.machine
        if not request.speculation.drafts:
            return Limits(0)
        nodes = FIRST_CAP
        if request.budgets:
            nodes = max(MIN_CAP, int(CAP_MARGIN * sorted(request.budgets)[-2:][0]))
        if not _speculation(state).on:
            nodes = min(nodes, TRIAL_CAP)
        nodes = min(nodes, self._max_nodes)
        pace = self._pace(ctx.context, state)
        least = pace
        if self._objective == "speed":  # the root alone gives one token, whatever is drafted
            overhead = costs.overhead(ctx.context, request.passes)
            least = 1.0 / (overhead + costs.forwards(1, ctx.context)[0])
        floors = costs.floors(nodes, ctx.context, least, request.scoring.max_gain())
        # The first node is always drafted: acceptance is learnt from verified nodes only.
        return Limits(
            nodes,
            floors=(-math.inf, *floors[1:]),
            pass_price=costs.pass_price(ctx.context) * pace,
        )

    def should_expand(self, growth: TokenTree, ctx: RoundContext, state: State) -> bool:
        pace = None if self._objective == "speed" else self._pace(ctx.context, state)
        return next_level_pays(growth, state.request.scoring, state.machine, ctx.context, pace)

    def choose(self, tree: TokenTree, ctx: RoundContext, state: State) -> int:
        """The best budget. The draft is already paid, so budget 0 includes its time, too."""
        tokens, seconds = self._curves(tree, ctx.context, state, ctx.passes)
        # A trial verifies at least one node: acceptance is learnt from verified nodes only.
        least = 0 if _speculation(state).on else min(1, tree.nodes)
        if self._objective == "speed":
            values = [a / t for a, t in zip(tokens, seconds, strict=True)]
        else:
            pace = self._pace(ctx.context, state)
            values = [a - pace * t for a, t in zip(tokens, seconds, strict=True)]
        return values.index(max(values[least:]), least)

    def observe(self, stats: RoundStats, state: State) -> State:
        request, costs, context = state.request, state.machine, stats.context
        if self._learns:
            costs = costs.learn(
                stats.timings,
                stats.budget,
                context,
                stats.drafted,
                not request.plain_before,
                stats.passes,
            )
        if not stats.drafted:
            return ControllerState(costs, _after_plain(request))
        context += stats.committed  # the next round reads the curve at this context
        forward = costs.forwards(len(stats.tree), context)[stats.budget]
        seconds = forward + costs.overhead(context, stats.passes)
        expected = request.scoring.expected_tokens(stats.tree)[-1]
        before, plain = _speculation(state), 1.0 / costs.plain_step(context)
        speculation = before.after_draft(stats.committed, expected, seconds, plain)
        times_disabled = _times_disabled(costs.times_disabled, before, speculation)
        if self._learns and times_disabled != costs.times_disabled:
            costs = evolve(costs, times_disabled=times_disabled)
        request = RequestState(
            request.acceptance.learn(stats.tree, stats.verdict),
            speculation,
            (*request.budgets[1 - RECENT_BUDGETS :], stats.budget),
            PACE_DECAY * request.tokens + stats.committed,
            PACE_DECAY * request.seconds + seconds,
            stats.passes,
            plain_before=False,
        )
        return ControllerState(costs, request)

    def forecast(self, stats: RoundStats, state: State) -> Forecast:
        if not stats.drafted:
            return Forecast((1.0,), (state.machine.plain_step(stats.context),))
        tokens, seconds = self._curves(stats.tree, stats.context, state, stats.passes)
        return Forecast(tuple(tokens), tuple(seconds))

    def explain(self, state: State) -> str | None:
        return state.request.speculation.explain()

    def _curves(
        self, tree: TokenTree, context: int, state: State, passes: int
    ) -> tuple[list[float], list[float]]:
        """Expected tokens and seconds of a round with a draft, by its budget 0..N."""
        costs, size = state.machine, len(tree)
        overhead = costs.overhead(context, passes)
        seconds = [overhead + forward for forward in costs.forwards(size, context)[:size]]
        return state.request.scoring.expected_tokens(tree), seconds

    def _pace(self, context: int, state: State) -> float:
        """Tokens per second of the request so far; plain decoding's before its first round."""
        request = state.request
        if request.seconds > 0.0:
            return request.tokens / request.seconds
        return 1.0 / state.machine.plain_step(context)


def _after_plain(request: RequestState) -> RequestState:
    before, speculation = request.speculation, request.speculation.after_plain()
    trial_starts = speculation.drafts and not before.drafts and not speculation.on
    acceptance = request.acceptance.scaled(TRIAL_MEMORY) if trial_starts else request.acceptance
    return evolve(request, speculation=speculation, acceptance=acceptance, plain_before=True)


def _speculation(state: State) -> SpeculationState:
    """The request's state; a new request starts with a trial if speculation was switched off
    MAX_DISABLED times, and if the trial fails, the longest pause follows."""
    speculation = state.request.speculation
    if state.machine.times_disabled < MAX_DISABLED or speculation != SpeculationState():
        return speculation
    return SpeculationState(on=False, pause=MAX_PAUSE // 2)


def _times_disabled(count: int, before: SpeculationState, after: SpeculationState) -> int:
    """The count after a round; it is reset once speculation has paid for MIN_ROUNDS rounds."""
    if before.on and not after.on:
        return count + 1
    return 0 if after.on and after.rounds >= MIN_ROUNDS else count
