"""A scripted machine and text to try a controller on: no clock, no model."""

import heapq
import math
import random
from collections.abc import Callable, Mapping
from functools import lru_cache

from attrs import define, field

from draftwood.core.interfaces.controller import BudgetController, ControllerState
from draftwood.core.tree import TokenTree
from draftwood.core.values import RoundContext, RoundStats, Timings, Verdict

Price = Callable[[int, int], float]


def two_roofs(tokens: int, context: int) -> float:
    """7 ms up to some thirty tokens, then growing: a small model on a CPU."""
    return max(0.007 + 1e-7 * (context + tokens), 0.001 + tokens * (2e-4 + 1e-8 * context))


@define
class Costs:
    """A CostProbe over a function of (tokens, context); counts its probes.

    on_probe is called with the seconds of each, to move a clock.
    """

    price: Price = two_roofs
    name: str = "scripted"
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
    """The best-first tree of a drafter that gives its tokens `best` and geometrically less."""
    shares = (best, 0.5 * (1 - best), 0.25 * (1 - best), 0.12 * (1 - best))
    tokens, parents, depths, log_rho = [0], [-1], [0], [0.0]
    fringe = [(-math.log(share), 1, 0, rank) for rank, share in enumerate(shares)]
    heapq.heapify(fringe)
    while len(tokens) <= nodes and fringe:
        cost, level, parent, rank = heapq.heappop(fringe)
        node = len(tokens)
        tokens.append(rank)
        parents.append(parent)
        depths.append(level)
        log_rho.append(-cost)
        if level < depth:
            for below, share in enumerate(shares):
                heapq.heappush(fringe, (cost - math.log(share), level + 1, node, below))
    return TokenTree.from_lists(tokens, parents, depths, log_rho)


@define
class Simulation:
    """Rounds of one request on a scripted machine, as the engine would run them.

    price: true seconds of a forward. draft, grow, other: of the stages. acceptance: true share of
    the drafter's promise that is kept at each node. spike: factor on every stage. noise: of times,
    a standard deviation of their logs.
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
        ctx = self.ctx()
        limits = self.controller.before_draft(ctx, self.state)
        drafted = limits.nodes > 0
        tree = tree_of(limits.nodes, best=self.best) if drafted else TokenTree.root(0)
        grown = tree.nodes
        if drafted:
            tree = tree.cut(self.controller.choose(tree, ctx, self.state))
        accepted = self._walk(tree)
        factor = self.spike * self.rng.lognormvariate(0.0, self.noise)
        timings = Timings(
            draft=factor * self.draft * drafted,
            grow=factor * self.grow * drafted,
            verify=factor * self.price(len(tree), self.context),
            other=factor * self.other,
        )
        stats = RoundStats(
            request=0,
            round=ctx.round,
            context=ctx.context,
            drafted=drafted,
            grown=grown,
            budget=tree.nodes,
            accepted=len(accepted) - 1,
            committed=len(accepted),
            tree=tree,
            verdict=Verdict(tuple(accepted), 0),
            timings=timings,
        )
        self.state = self.controller.observe(stats, self.state)
        if drafted:
            self.last_draft = 0
        elif self.last_draft is not None:
            self.last_draft += 1
        self.context += stats.committed
        self.history.append(stats)

    def _walk(self, tree: TokenTree) -> list[int]:
        """The path that the text takes: each child with its share of the drafter's promise."""
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
