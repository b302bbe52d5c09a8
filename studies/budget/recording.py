"""Records the round that could start at each token of a text."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import evolve, field, frozen

from draftwood.core.draws import Draws
from draftwood.core.engine import Engine, Request
from draftwood.core.errors import RequestError
from draftwood.core.interfaces import (
    BudgetController,
    ControllerState,
    CostProbe,
    Drafter,
    Target,
    TreePolicy,
    Verifier,
)
from draftwood.core.interfaces.tree import ShouldExpand
from draftwood.core.proposals import Proposal
from draftwood.core.randomness import Randomness
from draftwood.core.tree import TokenTree
from draftwood.core.values import Limits, RoundContext
from draftwood.plugins.trees.scoring import scored
from studies.budget.shapes import Conditionals, beam, random_tree

SIZES = (4, 8, 16, 32, 64, 128)
"""Budgets that fixed trees, beams and random trees are tried at; the last is what is grown."""

TIMED = 8
"""Growing is timed at one token in so many."""


@frozen(eq=False)
class Round:
    """What could be verified at one token of a text. The text's own path through each tree, the
    root first, is known.

    context: committed tokens, this one included. remaining: tokens of the text after it. tree,
    path: the policy's. own, own_path: the same scored at the request's own temperature. shapes:
    {"random" or "beam-N": (nodes, path)}. All empty where the last token left no room for a draft.
    passes: of the drafter's model.
    """

    context: int
    remaining: int
    tree: TokenTree
    path: tuple[int, ...]
    own: TokenTree
    own_path: tuple[int, ...]
    shapes: Mapping[str, tuple[int, tuple[int, ...]]]
    passes: int = 1


@frozen(eq=False)
class Text:
    """A decoded text. rounds: one for each new token but the last. grow: {nodes: seconds} that
    growing was seen to take, of each timing. draft: seconds of each draft."""

    prompt: str
    rounds: tuple[Round, ...]
    grow: Mapping[int, Sequence[float]] = field(factory=dict)
    draft: Sequence[float] = ()


@frozen(eq=False)
class Parts:
    """A pipeline without its controller. own: the tree policy at another score temperature, given
    the request's."""

    target: Target
    drafter: Drafter
    tree: TreePolicy
    verifier: Verifier
    own: Callable[[float], TreePolicy]


def record(
    parts: Parts,
    request: Request,
    prompt: str,
    rng: random.Random,
    *,
    sizes: Sequence[int] = SIZES,
    clock: Callable[[], float] = time.perf_counter,
) -> Text:
    """Decode one request plainly and record a round at each of its tokens.

    rng: of random trees. Raises RequestError for drawn trees, which cannot be cut, and for
    drafters that run once a level, whose cost depends on the tree.
    """
    own = parts.own(request.options.sampling.temperature)
    shapes = _Shapes(parts.tree, own, sizes, rng, clock)
    engine = Engine(parts.target, parts.verifier, parts.drafter, shapes, _Watch(sizes[-1]), clock)
    run = engine.open(request)
    starts, draft = [], []
    while run.finish_reason is None:
        (step,) = engine.step([run])
        if step.stats is None:
            continue
        seen = shapes.take() if step.stats.drafted else None
        starts.append((step.stats.context, seen, step.stats.passes))
        if step.stats.drafted:
            draft.append(step.stats.timings.draft)
    rounds = [_round(context, seen, run.ids, passes) for context, seen, passes in starts]
    return Text(prompt, tuple(rounds), shapes.timed, draft)


def walk(tree: TokenTree, tokens: Sequence[int]) -> tuple[int, ...]:
    """The nodes of `tree` that `tokens` after its anchor lead through, the root first."""
    path, children, names = [0], tree.children, tree.token_list
    for token in tokens:
        below = next((node for node in children[path[-1]] if names[node] == token), None)
        if below is None:
            break
        path.append(below)
    return tuple(path)


_Seen = Mapping[str, TokenTree]


def _round(context: int, seen: _Seen | None, ids: Sequence[int], passes: int) -> Round:
    after, alone = ids[context:], TokenTree.root(ids[context - 1])
    trees = dict(seen or {"tree": alone, "own": alone})
    # A round commits a path and one token more, so the path ends one before the text does.
    paths = {name: walk(tree, after[: len(after) - 1]) for name, tree in trees.items()}
    shapes = {
        name: (tree.nodes, paths[name])
        for name, tree in trees.items()
        if name not in ("tree", "own")
    }
    return Round(
        context,
        len(after),
        trees["tree"],
        paths["tree"],
        trees["own"],
        paths["own"],
        shapes,
        passes,
    )


class _Watch(BudgetController[None, None]):
    """Wants everything grown and nothing verified."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes

    def init(self, costs: CostProbe) -> None:
        return None

    def open(self) -> None:
        return None

    def before_draft(self, ctx: RoundContext, state: ControllerState[None, None]) -> Limits:
        return Limits(self.nodes)

    def choose(self, tree: TokenTree, ctx: RoundContext, state: ControllerState[None, None]) -> int:
        return 0


class _Shapes(TreePolicy):
    """Grows a policy's tree, and keeps it beside others of the same proposal."""

    def __init__(
        self,
        policy: TreePolicy,
        own: TreePolicy,
        sizes: Sequence[int],
        rng: random.Random,
        clock: Callable[[], float],
    ) -> None:
        self.policy, self.own, self.sizes, self.rng, self.clock = policy, own, sizes, rng, clock
        self.timed: dict[int, list[float]] = {size: [] for size in sizes}
        self._seen: dict[str, TokenTree] | None = None
        self._count = 0

    def grow(
        self,
        anchor: int,
        proposal: Proposal,
        limits: Limits,
        should_expand: ShouldExpand,
        rng: Randomness,
    ) -> TokenTree:
        if proposal.pass_per_level:
            raise RequestError(
                "budgets are replayed for drafters that propose a whole tree in one pass; this one "
                "runs once a level, so what a tree costs depends on its shape"
            )
        tree = self.policy.grow(anchor, proposal, limits, should_expand, rng)
        if tree.draws is not Draws.DETERMINISTIC:
            raise RequestError(
                f"budgets are replayed on trees that can be cut, and {tree.draws} draws cannot; "
                "use tree: {use: best_first}"
            )
        depth = proposal.max_depth
        if limits.depth is not None:
            depth = min(depth, limits.depth)
        distributions = Conditionals(scored(proposal, None))
        seen = {"tree": tree, "own": self.own.grow(anchor, proposal, limits, should_expand, rng)}
        seen["random"] = random_tree(anchor, distributions, limits.nodes, depth, self.rng)
        for size in self.sizes:
            seen[f"beam-{size}"] = beam(anchor, distributions, size, depth)
        if self._count % TIMED == 0:
            self._time(anchor, proposal, limits, should_expand, rng)
        self._count += 1
        self._seen = seen
        return tree

    def take(self) -> dict[str, TokenTree] | None:
        """What was grown since the last call."""
        seen, self._seen = self._seen, None
        return seen

    def _time(self, anchor: int, proposal: Proposal, limits: Limits, *rest: Any) -> None:
        for size in self.sizes:
            # A proposal keeps its distributions once they were asked for; each timing has its own.
            fresh = proposal.tempered(proposal.sampling.temperature)
            start = self.clock()
            self.policy.grow(anchor, fresh, evolve(limits, nodes=size), *rest)
            self.timed[size].append(self.clock() - start)
