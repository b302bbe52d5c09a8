"""Walks a policy over recorded rounds and adds up what they would have cost."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from attrs import define, field, frozen

from draftwood.core.controlled_round import ControlledRound
from draftwood.core.interfaces import BudgetController, ControllerState
from draftwood.core.tree import TokenTree
from draftwood.core.values import Limits, RoundContext, RoundStats, Timings, Verdict
from studies.budget.recording import RecordedRound, RecordedText
from studies.budget.times import Times

TreeKind = Literal["tree", "own"]


@frozen
class Walk:
    """A policy's rounds over one text.

    Attributes:
        tokens: Committed tokens.
        seconds: Virtual time.
        budgets: Of each round.
    """

    tokens: int
    seconds: float
    budgets: tuple[int, ...]


def walk_fixed(text: RecordedText, times: Times, nodes: int, shape: str = "tree") -> Walk:
    """The same budget every round; 0 decodes plainly.

    Args:
        text: The record.
        times: Of this machine.
        nodes: The budget.
        shape: "tree" for the policy's, or "random" or "beam" for one of that many nodes.
    """

    def rounds() -> Iterator[tuple[int, int, float]]:
        start = 0
        while start < len(text.rounds):
            recorded = text.rounds[start]
            size, path = _tree_and_path(recorded, shape, nodes)
            if nodes == 0:
                yield 0, 1, times.plain_step(recorded.context)
                start += 1
                continue
            verified = min(nodes, size)
            committed = _committed(recorded, path, verified)
            yield verified, committed, _seconds(times, recorded, verified)
            start += committed

    return _summed(rounds())


def walk_oracle(text: RecordedText, times: Times) -> Walk:
    """The budgets with the least total time, given the accepted paths: a bound that no choice of
    budgets on these trees can beat.

    Dynamic programming from the end: the least time from a token is that of its best round plus
    the least time from the token that it reaches. Only budgets that end with an accepted node can
    be best.
    """
    count = len(text.rounds)
    least, choice = [0.0] * (count + 1), [(0, 1, 0.0)] * count
    for start in range(count - 1, -1, -1):
        recorded = text.rounds[start]
        options = [(0, 1, times.plain_step(recorded.context))]
        options += [
            (node, _committed(recorded, recorded.path, node), _seconds(times, recorded, node))
            for node in recorded.path[1:]
        ]
        best = min(options, key=lambda option: option[2] + least[min(count, start + option[1])])
        choice[start] = best
        least[start] = best[2] + least[min(count, start + best[1])]

    def rounds() -> Iterator[tuple[int, int, float]]:
        start = 0
        while start < count:
            yield choice[start]
            start += choice[start][1]

    return _summed(rounds())


@define(eq=False)
class ControllerWalk:
    """A controller that decides on recorded rounds and learns from them as from real ones.

    Attributes:
        controller: The policy.
        machine: The machine part of its state, kept from text to text.
        times: Of this machine.
        kind: Which recorded tree it cuts.
        clock: Times the decisions.
        control_seconds: Real seconds of its decisions, one entry per round with a draft.
    """

    controller: BudgetController[Any, Any]
    machine: Any
    times: Times
    kind: TreeKind = "tree"
    clock: Callable[[], float] = time.perf_counter
    control_seconds: list[float] = field(factory=list)

    def walk(self, text: RecordedText) -> Walk:
        return _summed(self._rounds(text))

    def _rounds(self, text: RecordedText) -> Iterator[tuple[int, int, float]]:
        state = ControllerState(self.machine, self.controller.open())
        start, number, last_draft = 0, 0, None
        while start < len(text.rounds):
            recorded = text.rounds[start]
            ctx = RoundContext(number, recorded.context, recorded.remaining, last_draft)
            began = self.clock()
            controlled = ControlledRound(self.controller, state, ctx)
            spent = self.clock() - began
            tree = TokenTree.root(0)
            if controlled.limits.nodes:
                controlled.passes = recorded.passes
                grown = self._grown(recorded, controlled.limits)
                began = self.clock()
                tree = controlled.cut(grown)
                spent += self.clock() - began
            stats = self._stats(recorded, controlled, tree)
            began = self.clock()
            state = controlled.observe(stats)
            spent += self.clock() - began
            if stats.drafted:
                self.control_seconds.append(spent)
            yield stats.budget, stats.committed, stats.timings.total
            last_draft = controlled.next_last_draft
            start, number = start + stats.committed, number + 1
        self.machine = state.machine

    def _grown(self, recorded: RecordedRound, limits: Limits) -> TokenTree:
        """The tree that would have been grown under these limits."""
        tree = recorded.own if self.kind == "own" else recorded.tree
        nodes = min(limits.nodes, tree.nodes)
        pairs = zip(tree.log_rho_list[1 : nodes + 1], limits.floors, strict=False)
        return tree.cut(next((n for n, (score, floor) in enumerate(pairs) if score < floor), nodes))

    def _stats(
        self, recorded: RecordedRound, controlled: ControlledRound, tree: TokenTree
    ) -> RoundStats:
        path = recorded.own_path if self.kind == "own" else recorded.path
        accepted = tuple(node for node in path if node <= tree.nodes)
        times, drafted = self.times, controlled.limits.nodes > 0
        timings = Timings(
            draft=times.draft if drafted else 0.0,
            grow=times.growing(controlled.grown) + times.control if drafted else 0.0,
            verify=float(times.forwards.seconds(len(tree), recorded.context)),
            other=times.other if drafted else times.plain,
        )
        committed = min(len(accepted), recorded.remaining)
        return controlled.stats(0, tree, Verdict(accepted, -1), committed, timings)


def _tree_and_path(recorded: RecordedRound, shape: str, nodes: int) -> tuple[int, Sequence[int]]:
    """Size and accepted path of the tree of this shape."""
    if shape == "tree":
        return recorded.tree.nodes, recorded.path
    name = shape if shape == "random" else f"{shape}-{nodes}"
    return recorded.shapes.get(name, (0, (0,)))


def _committed(recorded: RecordedRound, path: Sequence[int], nodes: int) -> int:
    """Accepted nodes among the first `nodes`, and the bonus token."""
    return min(sum(node <= nodes for node in path), recorded.remaining)


def _seconds(times: Times, recorded: RecordedRound, nodes: int) -> float:
    """Time of a round that grows and verifies `nodes`; the last token has no room for a draft."""
    if recorded.remaining < 2:
        return times.plain_step(recorded.context)
    return times.drafted(nodes, nodes, recorded.context)


def _summed(rounds: Iterator[tuple[int, int, float]]) -> Walk:
    budgets, committed, seconds = zip(*rounds, strict=True)
    return Walk(sum(committed), sum(seconds), tuple(budgets))
