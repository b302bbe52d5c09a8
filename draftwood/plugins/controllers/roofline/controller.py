"""The budget that maximises tokens per second, from what a tree is worth and what it costs."""

import math
from collections.abc import Callable
from typing import Literal

from attrs import evolve, field, frozen

from draftwood.core.errors import DraftwoodError
from draftwood.core.interfaces.controller import (
    BudgetController,
    ControllerState,
    CostProbe,
    Forecast,
)
from draftwood.core.processes import now
from draftwood.core.tree import TokenTree
from draftwood.core.values import Limits, RoundContext, RoundStats
from draftwood.plugins.controllers.options import RooflineOptions
from draftwood.plugins.controllers.roofline import store
from draftwood.plugins.controllers.roofline.acceptance import Acceptance
from draftwood.plugins.controllers.roofline.levels import level_pays
from draftwood.plugins.controllers.roofline.prices import Prices
from draftwood.plugins.controllers.roofline.probing import CONTEXTS, nominal, probed
from draftwood.plugins.controllers.roofline.switch import LONGEST, PATIENCE, Switch

FIRST_CAP, LEAST_CAP = 64, 16
"""Most nodes grown in a request's first round, and at least grown in any: what a larger tree
would be worth is only seen by growing it."""

GIVEN_UP = 2
"""Times in a row that the drafter was given up, after which a request begins with a trial: what is
known of a text does not outlive it, but this is known of the drafter."""

TRIAL_CAP = 8
"""Most nodes of a trial's trees: whether speculation pays shows in small ones, which are cheap."""

RECENT = 8
"""Budgets that the next tree's size follows."""

SPARE = 1.25
"""How many times the second largest of them it is: one round that was surer than others does not
make eight trees large. Nodes that are grown and not verified cost the host's time, and where levels
take passes a part of one."""

TRUST = 2.0
"""A stored price that one probe finds wrong by more than this factor is measured again."""

FORGET = 0.2
"""Share of what was learnt about acceptance that a trial after a pause still believes."""


@frozen
class Text:
    """What is known of one request. Hashable.

    budgets: recent ones, of rounds that drafted. tokens, seconds: decayed totals of what rounds
    committed and cost, for the pace. passes: of the drafter's model in its last round. idle: it was
    not asked in the round before.
    """

    acceptance: Acceptance = field(factory=Acceptance)
    switch: Switch = field(factory=Switch)
    budgets: tuple[int, ...] = ()
    tokens: float = 0.0
    seconds: float = 0.0
    passes: int = 1
    idle: bool = True


State = ControllerState[Prices, Text]


class BestBudget(BudgetController[Prices, Text]):
    """Two decisions a round (BASTION, arXiv 2605.29727), and one per level of some drafters.

    Before drafting: whether speculation pays against plain decoding at all. Between levels that
    cost a drafter pass each: whether the next one can pay for it. After growing: the
    budget N that maximises S(N) = A^(N) / (T_draft + T_grow + T_v(N+1) + T_other) over all N.
    What forwards cost is the subclass's to say, by `init`. learns: whether prices follow the times
    of rounds.
    """

    def __init__(
        self, max_nodes: int, objective: Literal["speed", "rate"], *, learns: bool
    ) -> None:
        self._max_nodes, self._objective, self._learns = max_nodes, objective, learns

    def open(self) -> Text:
        return Text()

    def before_draft(self, ctx: RoundContext, state: State) -> Limits:
        """No nodes while speculation is off; else as many as the last budgets make likely, and
        none whose score cannot pay for it."""
        if not state.request.switch.drafts:
            return Limits(0)
        recent = state.request.budgets
        cap = max(LEAST_CAP, int(SPARE * sorted(recent)[-2:][0])) if recent else FIRST_CAP
        if not _switch(state).on:
            cap = min(cap, TRIAL_CAP)
        nodes = min(cap, self._max_nodes)
        pace, prices = self._least_pace(ctx.context, state), state.machine
        floors = prices.floors(nodes, ctx.context, pace, _believed(state.request).gain())
        price = prices.pass_price(ctx.context) * self._pace(ctx.context, state)
        # What is never verified cannot prove itself: the first node is always drafted.
        return Limits(nodes, floors=(-math.inf, *floors[1:]), pass_price=price)

    def should_expand(self, growth: TokenTree, ctx: RoundContext, state: State) -> bool:
        """Whether one more level can pay for the drafter pass that it costs."""
        acceptance = _believed(state.request)
        pace = None if self._objective == "speed" else self._pace(ctx.context, state)
        return level_pays(growth, acceptance, state.machine, ctx.context, pace)

    def choose(self, tree: TokenTree, ctx: RoundContext, state: State) -> int:
        """The best budget. The draft is sunk, so 0 costs it too."""
        tokens = _believed(state.request).expected_tokens(tree)
        seconds = self._seconds(tree, ctx.context, state.machine, ctx.passes)
        # A trial verifies at least one node: what is never verified cannot prove itself.
        least = 0 if _switch(state).on else min(1, tree.nodes)
        if self._objective == "speed":
            gain = [a / t for a, t in zip(tokens, seconds, strict=True)]
        else:
            pace = self._pace(ctx.context, state)
            gain = [a - pace * t for a, t in zip(tokens, seconds, strict=True)]
        return gain.index(max(gain[least:]), least)

    def observe(self, stats: RoundStats, state: State) -> State:
        text, prices, context = state.request, state.machine, stats.context
        if self._learns:
            prices = prices.learn(
                stats.timings,
                stats.budget,
                context,
                stats.drafted,
                not text.idle,
                stats.passes,
            )
        if not stats.drafted:
            switch = text.switch.after_plain()
            begins = switch.drafts and not text.switch.drafts and not switch.on
            acceptance = text.acceptance.forget(FORGET) if begins else text.acceptance
            text = evolve(text, switch=switch, acceptance=acceptance, idle=True)
            return ControllerState(prices, text)
        context += stats.committed  # where the next round asks again
        forward = prices.forwards(len(stats.tree), context)[stats.budget]
        seconds = forward + prices.overhead(context, stats.passes)
        promised = _believed(text).expected_tokens(stats.tree)[-1]
        before, plain = _switch(state), 1.0 / prices.plain_step(context)
        switch = before.after_draft(stats.committed, promised, seconds, plain)
        given_up = _given_up(prices.given_up, before, switch)
        if self._learns and given_up != prices.given_up:
            prices = evolve(prices, given_up=given_up)
        text = Text(
            text.acceptance.learn(stats.tree, stats.verdict),
            switch,
            (*text.budgets[1 - RECENT :], stats.budget),
            0.9 * text.tokens + stats.committed,
            0.9 * text.seconds + seconds,
            stats.passes,
            idle=False,
        )
        return ControllerState(prices, text)

    def forecast(self, stats: RoundStats, state: State) -> Forecast:
        if not stats.drafted:
            return Forecast((1.0,), (state.machine.plain_step(stats.context),))
        tokens = _believed(state.request).expected_tokens(stats.tree)
        seconds = self._seconds(stats.tree, stats.context, state.machine, stats.passes)
        return Forecast(tuple(tokens), tuple(seconds))

    def explain(self, state: State) -> str | None:
        return state.request.switch.explain()

    def _seconds(self, tree: TokenTree, context: int, prices: Prices, passes: int) -> list[float]:
        """Seconds of a round that drafted and verifies the first 0, 1, .. N draft nodes."""
        overhead = prices.overhead(context, passes)
        return [overhead + each for each in prices.forwards(len(tree), context)[: len(tree)]]

    def _least_pace(self, context: int, state: State) -> float:
        """Tokens per second that a round makes whatever it drafts."""
        if self._objective == "rate":
            return self._pace(context, state)
        prices = state.machine
        overhead = prices.overhead(context, state.request.passes)
        return 1.0 / (overhead + prices.forwards(1, context)[0])

    def _pace(self, context: int, state: State) -> float:
        """Tokens per second reached so far; plain decoding's before the first round."""
        text = state.request
        if text.seconds > 0.0:
            return text.tokens / text.seconds
        return 1.0 / state.machine.plain_step(context)


class Roofline(BestBudget):
    """The best budget by two roofs over forward times, corrected by what rounds take (BASTION,
    arXiv 2605.29727). clock: seconds, for the limit on probing.
    """

    def __init__(self, options: RooflineOptions, clock: Callable[[], float] = now) -> None:
        super().__init__(options.max_nodes, options.objective, learns=options.clock == "wall")
        self.options, self.clock = options, clock

    def init(self, costs: CostProbe) -> Prices:
        """Stored prices if a probe confirms them, else measured ones, which are stored."""
        return evolve(self._known(costs), sizes=costs.sizes)

    def _known(self, costs: CostProbe) -> Prices:
        if self.options.clock == "nominal":
            return nominal(costs)
        stored = None if self.options.refresh else store.load(costs.identity)
        if stored is not None and confirmed(stored, costs):
            return stored
        prices, probes = probed(costs, self.clock, self.options.probe_seconds)
        # A busy machine is not a slower one: what was measured in better times is kept.
        if prices.source == "probe" and (stored is None or _faster(prices, stored)):
            store.save(costs.identity, prices, probes)
        return prices


def _switch(state: State) -> Switch:
    """The request's; at its start that of a trial, where the drafter was given up before: if it
    fails, the longest pause follows."""
    switch = state.request.switch
    if state.machine.given_up < GIVEN_UP or switch != Switch():
        return switch
    return Switch(on=False, pause=LONGEST // 2)


def _given_up(count: int, before: Switch, after: Switch) -> int:
    """How often in a row speculation was switched off, after a round; paying for PATIENCE rounds
    forgets it."""
    if before.on and not after.on:
        return count + 1
    return 0 if after.on and after.rounds >= PATIENCE else count


def _believed(text: Text) -> Acceptance:
    """What a tree's worth is judged by. A trial trusts the drafter as a new request does."""
    return text.acceptance if text.switch.on else Acceptance()


def _faster(prices: Prices, than: Prices) -> bool:
    """Whether a larger tree's forward, which `confirmed` looks at too, takes less time."""
    return bool(prices.forward(16, CONTEXTS[0]) < than.forward(16, CONTEXTS[0]))


def confirmed(prices: Prices, costs: CostProbe) -> bool:
    """Whether one timed forward of a small and of a larger tree are near the stored prices."""
    for tokens in (1, 16):
        try:
            seconds = costs.seconds(tokens, CONTEXTS[0])
        except DraftwoodError:  # it holds fewer tokens than that: nothing to compare with
            continue
        if not 1.0 / TRUST <= seconds / float(prices.forward(tokens, CONTEXTS[0])) <= TRUST:
            return False
    return True
