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
"""Budgets of fixed trees, beams and random trees; trees are grown to the last."""

TIMED_EVERY = 8
"""Growing is timed at every eighth round."""


@frozen(eq=False)
class RecordedRound:
    """The trees that could be verified at one token of a text, with the text's path through each.

    Trees are empty at the last token, which leaves no room for a draft.

    Attributes:
        context: Committed tokens, this one included.
        remaining: Tokens of the text after it.
        tree: The policy's.
        path: The text's nodes in it, the root first.
        own: The same tree, scored at the request's temperature.
        own_path: The text's nodes in it.
        shapes: {"random" or "beam-N": (nodes, path)}.
        passes: Forward passes of the drafter's model.
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
class RecordedText:
    """A decoded text.

    Attributes:
        prompt: Its id.
        rounds: One for each new token but the last.
        grow: {nodes: seconds of each timed growth}.
        draft: Seconds of each draft.
    """

    prompt: str
    rounds: tuple[RecordedRound, ...]
    grow: Mapping[int, Sequence[float]] = field(factory=dict)
    draft: Sequence[float] = ()


@frozen(eq=False)
class Parts:
    """A pipeline without its controller.

    Attributes:
        target: Of the pipeline, as drafter, tree and verifier are.
        own: Temperature of a request -> the tree policy with that score temperature.
    """

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
) -> RecordedText:
    """Decode one request plainly and record the round that could start at each of its tokens.

    Args:
        parts: The pipeline.
        request: The text to decode.
        prompt: Its id.
        rng: Draws of random trees.
        sizes: Budgets to record shapes for, increasing.
        clock: Times drafting and growing.

    Raises:
        RequestError: Trees are drawn and cannot be cut, or the drafter runs its model once per
            level, so that the cost of a tree depends on its shape.
    """
    own = parts.own(request.options.sampling.temperature)
    shapes = _ShapeRecorder(parts.tree, own, sizes, rng, clock)
    engine = Engine(parts.target, parts.verifier, parts.drafter, shapes, _GrowAll(sizes[-1]), clock)
    run = engine.open(request)
    starts, draft = [], []
    while run.finish_reason is None:
        (step,) = engine.step([run])
        if step.stats is None:
            continue
        trees = shapes.take() if step.stats.drafted else None
        starts.append((step.stats.context, trees, step.stats.passes))
        if step.stats.drafted:
            draft.append(step.stats.timings.draft)
    rounds = [_round(context, trees, run.ids, passes) for context, trees, passes in starts]
    return RecordedText(prompt, tuple(rounds), shapes.timed, draft)


def path_of(tree: TokenTree, tokens: Sequence[int]) -> tuple[int, ...]:
    """The nodes of `tree` along `tokens`, which follow its anchor; the root first."""
    path, children, names = [0], tree.children, tree.token_list
    for token in tokens:
        child = next((node for node in children[path[-1]] if names[node] == token), None)
        if child is None:
            break
        path.append(child)
    return tuple(path)


def _round(
    context: int, grown: Mapping[str, TokenTree] | None, ids: Sequence[int], passes: int
) -> RecordedRound:
    after, root = ids[context:], TokenTree.root(ids[context - 1])
    trees = dict(grown or {"tree": root, "own": root})
    # A round commits a path and one token more, so the path ends one before the text does.
    paths = {name: path_of(tree, after[: len(after) - 1]) for name, tree in trees.items()}
    shapes = {
        name: (tree.nodes, paths[name])
        for name, tree in trees.items()
        if name not in ("tree", "own")
    }
    return RecordedRound(
        context,
        len(after),
        trees["tree"],
        paths["tree"],
        trees["own"],
        paths["own"],
        shapes,
        passes,
    )


class _GrowAll(BudgetController[None, None]):
    """Trees are grown to `nodes`, and nothing is verified."""

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


class _ShapeRecorder(TreePolicy):
    """Grows a policy's tree, and keeps it with other trees of the same proposal."""

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
        self._trees: dict[str, TokenTree] | None = None
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
                "budgets are replayed for drafters that propose a whole tree in one forward pass; "
                "this one runs once per level, so the cost of a tree depends on its shape"
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
        conditionals = Conditionals(scored(proposal, None))
        trees = {"tree": tree, "own": self.own.grow(anchor, proposal, limits, should_expand, rng)}
        trees["random"] = random_tree(anchor, conditionals, limits.nodes, depth, self.rng)
        for size in self.sizes:
            trees[f"beam-{size}"] = beam(anchor, conditionals, size, depth)
        if self._count % TIMED_EVERY == 0:
            self._time(anchor, proposal, limits, should_expand, rng)
        self._count += 1
        self._trees = trees
        return tree

    def take(self) -> dict[str, TokenTree] | None:
        """The trees grown since the last call."""
        trees, self._trees = self._trees, None
        return trees

    def _time(self, anchor: int, proposal: Proposal, limits: Limits, *rest: Any) -> None:
        for size in self.sizes:
            # A proposal caches its distributions: each timing needs a fresh one.
            fresh = proposal.tempered(proposal.sampling.temperature)
            start = self.clock()
            self.policy.grow(anchor, fresh, evolve(limits, nodes=size), *rest)
            self.timed[size].append(self.clock() - start)
