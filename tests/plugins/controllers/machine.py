"""A simulated machine, text and drafter for controllers: no clock, no model."""

import heapq
import math
import random
from collections.abc import Callable, Mapping
from functools import lru_cache

from attrs import define, field

from draftwood.core.controlled_round import ControlledRound
from draftwood.core.interfaces.controller import BudgetController, ControllerState
from draftwood.core.tree import TokenTree
from draftwood.core.values import RoundContext, RoundStats, Timings, Verdict

Price = Callable[[int, int], float]
"""Seconds of a forward over (tokens, context)."""


def two_roofs(tokens: int, context: int) -> float:
    """7 ms up to some thirty tokens, then growing: a small model on a CPU."""
    return max(0.007 + 1e-7 * (context + tokens), 0.001 + tokens * (2e-4 + 1e-8 * context))


@define
class Costs:
    """A CostProbe over a function of (tokens, context).

    Attributes:
        price: Seconds of a forward.
        name: Of the device.
        on_probe: Called with the seconds of each timing, to move a clock.
        probes: The timings so far.
        sizes: Sizes that forwards are padded to.
    """

    price: Price = two_roofs
    name: str = "simulated"
    on_probe: Callable[[float], object] = lambda seconds: None
    probes: list[tuple[int, int]] = field(factory=list)
    sizes: tuple[int, ...] = ()

    @property
    def identity(self) -> Mapping[str, str]:
        return {"device": self.name}

    def seconds(self, tokens: int, context: int) -> float:
        self.probes.append((tokens, context))
        seconds = self.price(tokens, context)
        self.on_probe(seconds)
        return seconds

    def flops(self, tokens: int, context: int) -> float:
        return 2e7 * tokens + 1e3 * tokens * (context + tokens)

    def bytes(self, tokens: int, context: int) -> float:
        return 4e7 + 1e4 * (context + tokens)

    def peaks(self) -> tuple[float, float]:
        return 1e11, 1e10


@lru_cache
def tree_of(nodes: int, depth: int = 10, best: float = 0.7) -> TokenTree:
    """The best-first tree of a drafter whose best token has probability `best` everywhere, and
    the others geometrically less."""
    probs = (best, 0.5 * (1 - best), 0.25 * (1 - best), 0.12 * (1 - best))
    tokens, parents, depths, log_rho = [0], [-1], [0], [0.0]
    frontier = [(-math.log(prob), 1, 0, rank) for rank, prob in enumerate(probs)]
    heapq.heapify(frontier)
    while len(tokens) <= nodes and frontier:
        cost, level, parent, rank = heapq.heappop(frontier)
        node = len(tokens)
        tokens.append(rank)
        parents.append(parent)
        depths.append(level)
        log_rho.append(-cost)
        if level < depth:
            for child_rank, prob in enumerate(probs):
                heapq.heappush(frontier, (cost - math.log(prob), level + 1, node, child_rank))
    return TokenTree.from_lists(tokens, parents, depths, log_rho)


@define
class Simulation:
    """Rounds of one request on a simulated machine, as the engine would run them.

    Attributes:
        controller: Under test.
        machine: The machine part of its state at first.
        price: True seconds of a forward.
        draft: True seconds of drafting.
        grow: True seconds of growing.
        other: True seconds of the rest of a round.
        acceptance: True acceptance of a node over the drafter's probability.
        best: Probability of the drafter's best token.
        spike: Factor on the time of every stage.
        noise: Standard deviation of the log of that factor.
        rng: Draws of noise and acceptance.
        context: Committed tokens.
        history: Rounds so far.
        state: The controller's.
        last_draft: Rounds since the last draft.
    """

    controller: BudgetController
    machine: object
    price: Price = two_roofs
    draft: float = 0.002
    grow: float = 0.0002
    other: float = 0.0005
    acceptance: float = 1.0
    best: float = 0.7
    spike: float = 1.0
    noise: float = 0.0
    rng: random.Random = field(factory=lambda: random.Random(0))
    context: int = 64
    history: list[RoundStats] = field(factory=list)
    state: ControllerState = field(init=False)
    last_draft: int | None = None

    def __attrs_post_init__(self) -> None:
        self.state = ControllerState(self.machine, self.controller.open())

    def ctx(self) -> RoundContext:
        return RoundContext(len(self.history), self.context, 10_000, self.last_draft)

    def run(self, rounds: int) -> list[RoundStats]:
        for _ in range(rounds):
            self._round()
        return self.history[-rounds:]

    def _round(self) -> None:
        controlled = ControlledRound(self.controller, self.state, self.ctx())
        drafted = controlled.limits.nodes > 0
        tree = TokenTree.root(0)
        if drafted:
            controlled.passes = 1
            tree = controlled.cut(tree_of(controlled.limits.nodes, best=self.best))
        accepted = self._accepted_path(tree)
        factor = self.spike * self.rng.lognormvariate(0.0, self.noise)
        timings = Timings(
            draft=factor * self.draft * drafted,
            grow=factor * self.grow * drafted,
            verify=factor * self.price(len(tree), self.context),
            other=factor * self.other,
        )
        verdict = Verdict(tuple(accepted), 0)
        stats = controlled.stats(0, tree, verdict, len(accepted), timings)
        self.state = controlled.observe(stats)
        self.last_draft = controlled.next_last_draft
        self.context += stats.committed
        self.history.append(stats)

    def _accepted_path(self, tree: TokenTree) -> list[int]:
        """A random path: each child with `acceptance` times the drafter's probability."""
        path = [0]
        rho = tree.log_rho.exp().tolist()
        while children := tree.children[path[-1]]:
            u = self.rng.random()
            for child in children:
                u -= self.acceptance * rho[child] / rho[path[-1]]
                if u < 0:
                    path.append(child)
                    break
            else:
                break
        return path


def speed(history: list[RoundStats]) -> float:
    """Tokens per second of these rounds."""
    return sum(s.committed for s in history) / sum(s.timings.total for s in history)
