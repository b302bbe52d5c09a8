"""Walks a policy over recorded rounds: which it would have met, and what they would have cost."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from attrs import define, evolve, field, frozen

from draftwood.core.interfaces import BudgetController, ControllerState
from draftwood.core.tree import TokenTree
from draftwood.core.values import Limits, RoundContext, RoundStats, Timings, Verdict
from studies.budget.recording import Round, Text
from studies.budget.times import Times

Kind = Literal["tree", "own"]


@frozen
class Walk:
    """What a policy made of one text. tokens: committed by rounds. budgets: of each round."""

    tokens: int
    seconds: float
    budgets: tuple[int, ...]


def fixed(text: Text, times: Times, nodes: int, shape: str = "tree") -> Walk:
    """The same budget every round; 0 decodes plainly. shape: the policy's tree, or "random", or
    "beam": one of that many nodes."""

    def rounds() -> Iterator[tuple[int, int, float]]:
        at = 0
        while at < len(text.rounds):
            each = text.rounds[at]
            size, path = _offered(each, shape, nodes)
            if nodes == 0:
                yield 0, 1, times.plain_step(each.context)
                at += 1
                continue
            verified = min(nodes, size)
            committed = _committed(each, path, verified)
            yield verified, committed, _price(times, each, verified, verified)
            at += committed

    return _walked(rounds())


def oracle(text: Text, times: Times) -> Walk:
    """The budgets that take least time for the whole text, known what is accepted: what is left
    is what no choice of budgets on these trees can save.

    From the end: the least time from a token on is that of the best first round plus the least
    from where it ends. Only budgets that end with an accepted node come into question.
    """
    count = len(text.rounds)
    least, choice = [0.0] * (count + 1), [(0, 1, 0.0)] * count
    for at in range(count - 1, -1, -1):
        each = text.rounds[at]
        options = [(0, 1, times.plain_step(each.context))]
        options += [
            (node, _committed(each, each.path, node), _price(times, each, node, node))
            for node in each.path[1:]
        ]
        best = min(options, key=lambda option: option[2] + least[min(count, at + option[1])])
        choice[at] = best
        least[at] = best[2] + least[min(count, at + best[1])]

    def rounds() -> Iterator[tuple[int, int, float]]:
        at = 0
        while at < count:
            yield choice[at]
            at += choice[at][1]

    return _walked(rounds())


@define(eq=False)
class Adaptive:
    """A controller that meets recorded rounds, and learns from them as it would from real ones.

    machine: what it knows of the machine, which goes from text to text. spent: seconds that its
    decisions really took, a round each. clock: that they are read from.
    """

    controller: BudgetController[Any, Any]
    machine: Any
    times: Times
    kind: Kind = "tree"
    clock: Callable[[], float] = time.perf_counter
    spent: list[float] = field(factory=list)

    def walk(self, text: Text) -> Walk:
        return _walked(self._rounds(text))

    def _rounds(self, text: Text) -> Iterator[tuple[int, int, float]]:
        state = ControllerState(self.machine, self.controller.open())
        at, number, last = 0, 0, None
        while at < len(text.rounds):
            each = text.rounds[at]
            ctx = RoundContext(number, each.context, each.remaining, last)
            start = self.clock()
            limits = self.controller.before_draft(ctx, state)
            between = self.clock()
            grown = self._grown(each, limits)
            tree = grown if grown is not None else TokenTree.root(0)
            asked = self.clock()
            if grown is not None:
                ctx = evolve(ctx, passes=each.passes)
                tree = grown.cut(self.controller.choose(grown, ctx, state))
            chosen = self.clock()
            stats = self._stats(each, ctx, grown, tree)
            observing = self.clock()
            state = self.controller.observe(stats, state)
            end = self.clock()
            if grown is not None:
                self.spent.append(between - start + chosen - asked + end - observing)
            yield stats.budget, stats.committed, stats.timings.total
            last = 0 if grown is not None else (None if last is None else last + 1)
            at, number = at + stats.committed, number + 1
        self.machine = state.machine

    def _grown(self, each: Round, limits: Limits) -> TokenTree | None:
        """The tree that would have been grown under these limits; None for a plain step."""
        if limits.nodes == 0 or each.remaining < 2:
            return None
        tree = each.own if self.kind == "own" else each.tree
        nodes = min(limits.nodes, tree.nodes)
        scores = tree.log_rho_list
        pairs = zip(scores[1 : nodes + 1], limits.floors, strict=False)
        ended = next((n for n, (score, floor) in enumerate(pairs) if score < floor), nodes)
        return tree.cut(ended)

    def _stats(
        self, each: Round, ctx: RoundContext, grown: TokenTree | None, tree: TokenTree
    ) -> RoundStats:
        path = each.own_path if self.kind == "own" else each.path
        accepted = tuple(node for node in path if node <= tree.nodes)
        times = self.times
        timings = Timings(
            draft=0.0 if grown is None else times.draft,
            grow=0.0 if grown is None else times.growing(grown.nodes) + times.control,
            verify=float(times.forwards.seconds(len(tree), each.context)),
            other=times.plain if grown is None else times.other,
        )
        return RoundStats(
            request=0,
            round=ctx.round,
            context=ctx.context,
            drafted=grown is not None,
            passes=0 if grown is None else each.passes,
            grown=0 if grown is None else grown.nodes,
            budget=tree.nodes,
            accepted=len(accepted) - 1,
            committed=min(len(accepted), each.remaining),
            tree=tree,
            verdict=Verdict(accepted, -1),
            timings=timings,
        )


def _offered(each: Round, shape: str, nodes: int) -> tuple[int, Sequence[int]]:
    """(nodes that there are, path) of a tree."""
    if shape == "tree":
        return each.tree.nodes, each.path
    name = shape if shape == "random" else f"{shape}-{nodes}"
    return each.shapes.get(name, (0, (0,)))


def _committed(each: Round, path: Sequence[int], nodes: int) -> int:
    """Accepted nodes among the first `nodes`, and one token more."""
    return min(sum(node <= nodes for node in path), each.remaining)


def _price(times: Times, each: Round, grown: int, nodes: int) -> float:
    """Of a round with a draft; the last token of a text leaves no room for one."""
    if each.remaining < 2:
        return times.plain_step(each.context)
    return times.drafted(grown, nodes, each.context)


def _walked(rounds: Iterator[tuple[int, int, float]]) -> Walk:
    budgets, committed, seconds = zip(*rounds, strict=True)
    return Walk(sum(committed), sum(seconds), tuple(budgets))
