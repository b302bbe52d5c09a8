"""What each method's trees would accept, at every round of texts that the target writes.

One decode serves all methods. In each round all trees are grown from the same context and merged
into one, one forward gives the target's distribution at every node, and `expected_accepted` gives
what each rule accepts of each tree, without sampling noise. The text continues by `match` on the
merged tree, so it is a sample of the target whatever is compared.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from attrs import evolve, field, frozen
from torch import Tensor

from draftwood.core.engine import Engine, Request
from draftwood.core.interfaces import (
    Drafter,
    DraftSession,
    DraftWork,
    NodeDistributions,
    ShouldExpand,
    Target,
    TreePolicy,
    Verifier,
)
from draftwood.core.options import MAX_NODES, Sampling
from draftwood.core.proposals import Children, Frontier, Proposal
from draftwood.core.randomness import Randomness
from draftwood.core.tree import TokenTree
from draftwood.core.values import Limits, Verdict
from draftwood.plugins.controllers.fixed import Fixed
from draftwood.plugins.controllers.options import FixedOptions
from draftwood.plugins.verifiers.acceptance import expected_accepted
from draftwood.plugins.verifiers.match import Match

UNLIMITED = MAX_NODES
"""A node limit that no merged tree reaches."""

MASS_TOKENS = 16
"""Most likely tokens that `RoundAcceptance.mass` covers."""


@frozen(eq=False)
class MethodTrees:
    """A method's rule, and its trees with their probabilities."""

    rule: str
    trees: Sequence[tuple[float, TokenTree]]


@frozen(eq=False)
class RoundTrees:
    """All methods' trees in one round.

    Attributes:
        methods: By name.
        notes: Numbers to keep with the round.
    """

    methods: Mapping[str, MethodTrees]
    notes: Mapping[str, Any] = field(factory=dict)


@frozen
class RoundAcceptance:
    """One round.

    Attributes:
        accepted: Expected accepted drafts by method, without the bonus token.
        nodes: Mean draft nodes by method.
        entropy: Of the target's next token, in bits.
        mass: Probability of the target's 1, 2, ... most likely next tokens together.
        notes: Those of `RoundTrees`.
    """

    accepted: Mapping[str, float]
    nodes: Mapping[str, float]
    entropy: float
    mass: tuple[float, ...]
    notes: Mapping[str, Any]


GrowTrees = Callable[[int, Sequence[Proposal], Randomness], RoundTrees]
"""(anchor, each drafter's proposal, draws) -> the trees of all methods."""


class Replay:
    """Decodes texts with a target and computes the acceptance of the trees in each round.

    Args:
        target: Writes the texts.
        drafters: Propose from the same context.
        grow: Grows all methods' trees.
    """

    def __init__(self, target: Target, drafters: Sequence[Drafter], grow: GrowTrees) -> None:
        self._merged = merged = _MergedTrees(grow)
        self._recorder = _AcceptanceRecorder(merged)
        self._engine = Engine(
            target,
            self._recorder,
            _SeveralDrafters(drafters),
            merged,
            Fixed(FixedOptions(nodes=UNLIMITED)),
        )

    def rounds(self, request: Request) -> list[RoundAcceptance]:
        """The rounds of one text that have room for a whole draft."""
        self._recorder.rounds = []
        run = self._engine.open(request)
        self._merged.end_tokens = run.end_tokens
        while run.finish_reason is None:
            self._engine.step([run])
        return self._recorder.rounds


class _MergedTrees(TreePolicy):
    """Grows all methods' trees, merged into one, and keeps them until they are judged."""

    def __init__(self, grow_trees: GrowTrees) -> None:
        self.grow_trees = grow_trees
        self.trees: RoundTrees | None = None
        self.places: dict[int, list[int]] = {}
        self.end_tokens: frozenset[int] = frozenset()

    def grow(
        self,
        anchor: int,
        proposal: Proposal,
        limits: Limits,
        should_expand: ShouldExpand,
        rng: Randomness,
    ) -> TokenTree:
        assert isinstance(proposal, _SeveralProposals)
        self.trees = None
        if limits.depth is not None and limits.depth < proposal.max_depth:
            return TokenTree.root(anchor)
        self.trees = self._ended(self.grow_trees(anchor, proposal.proposals, rng))
        every = [tree for method in self.trees.methods.values() for _, tree in method.trees]
        merged, places = merge(anchor, every)
        self.places = {id(tree): place for tree, place in zip(every, places, strict=True)}
        return merged

    def _ended(self, trees: RoundTrees) -> RoundTrees:
        """The trees without what hangs below an end of text, as the engine cuts them."""
        methods = {
            name: evolve(
                method,
                trees=[
                    (probability, tree.without_descendants(self.end_tokens))
                    for probability, tree in method.trees
                ],
            )
            for name, method in trees.methods.items()
        }
        return evolve(trees, methods=methods)


class _AcceptanceRecorder(Verifier):
    """`match`, which also records the expected acceptance of every tree."""

    def __init__(self, merged: _MergedTrees) -> None:
        self.merged, self.match = merged, Match()
        self.rounds: list[RoundAcceptance] = []

    def judge(self, distributions: NodeDistributions, tree: TokenTree, rng: Randomness) -> Verdict:
        trees, self.merged.trees = self.merged.trees, None
        if trees is not None:
            self.rounds.append(self._acceptance(trees, distributions))
        return self.match.judge(distributions, tree, rng)

    def _acceptance(self, trees: RoundTrees, distributions: NodeDistributions) -> RoundAcceptance:
        accepted, nodes = {}, {}
        for name, method in trees.methods.items():
            accepted[name] = nodes[name] = 0.0
            for probability, tree in method.trees:
                place = self.merged.places[id(tree)]

                def probs(node: int, place: list[int] = place) -> Tensor:
                    return distributions.probs(place[node])

                accepted[name] += probability * expected_accepted(tree, probs, method.rule)
                nodes[name] += probability * tree.nodes
        root = distributions.probs(0)
        mass = root.topk(min(MASS_TOKENS, len(root))).values.cumsum(0)
        return RoundAcceptance(accepted, nodes, _bits(root), tuple(mass.tolist()), trees.notes)


def merge(anchor: int, trees: Sequence[TokenTree]) -> tuple[TokenTree, list[list[int]]]:
    """The prefix tree of several trees with one anchor, and the node in it of each tree's nodes."""
    tokens, parents, depths = [anchor], [-1], [0]
    known: dict[tuple[int, int], int] = {}
    places = []
    for tree in trees:
        place = [0]
        for node in range(1, len(tree)):
            key = (place[tree.parent_list[node]], tree.token_list[node])
            if key not in known:
                known[key] = len(tokens)
                tokens.append(key[1])
                parents.append(key[0])
                depths.append(depths[key[0]] + 1)
            place.append(known[key])
        places.append(place)
    return TokenTree.from_lists(tokens, parents, depths, [0.0] * len(tokens)), places


def _bits(probs: Tensor) -> float:
    """Entropy of probs (V,)."""
    p = probs.double()
    return float(-(p * torch.where(p > 0, p, 1.0).log2()).sum())


class _SeveralSessions(DraftSession):
    """A session of each drafter, with its columns of the tapped features."""

    def __init__(self, inner: Sequence[DraftSession], columns: Sequence[slice]) -> None:
        self.inner, self.columns = tuple(inner), tuple(columns)

    def commit(self, tokens: Sequence[int], features: Tensor | None) -> None:
        for session, columns in zip(self.inner, self.columns, strict=True):
            session.commit(tokens, None if features is None else features[:, columns])

    def fork(self) -> "_SeveralSessions":
        return _SeveralSessions([session.fork() for session in self.inner], self.columns)


class _SeveralDrafters(Drafter):
    """Several drafters on one text."""

    def __init__(self, drafters: Sequence[Drafter], width: int = 0) -> None:
        self.drafters, self.width = tuple(drafters), width

    @property
    def taps(self) -> tuple[int, ...]:
        return tuple(tap for drafter in self.drafters for tap in drafter.taps)

    def bind(self, target: Target) -> "_SeveralDrafters":
        width = target.embedding_weight().shape[1] if self.taps else 0
        return _SeveralDrafters([drafter.bind(target) for drafter in self.drafters], width)

    def open(self, target: Target, sampling: Sampling) -> _SeveralSessions:
        columns, start = [], 0
        for drafter in self.drafters:
            end = start + self.width * len(drafter.taps)
            columns.append(slice(start, end))
            start = end
        return _SeveralSessions(
            [drafter.open(target, sampling) for drafter in self.drafters], columns
        )

    def propose(self, work: Sequence[DraftWork]) -> list[Proposal]:
        return [_SeveralProposals(self._proposals(item)) for item in work]

    def _proposals(self, item: DraftWork) -> tuple[Proposal, ...]:
        assert isinstance(item.session, _SeveralSessions)
        proposals: list[Proposal] = []
        pairs = zip(self.drafters, item.session.inner, strict=True)
        for index, (drafter, inner) in enumerate(pairs):
            rng = item.rng.stream(str(index))
            part = evolve(item, session=inner, limits=Limits(UNLIMITED), rng=rng)
            proposals.extend(drafter.propose([part]))
        return tuple(proposals)


@frozen(eq=False)
class _SeveralProposals(Proposal):
    """A container of proposals for `_MergedTrees`; it has no distribution."""

    proposals: tuple[Proposal, ...]

    @property
    def max_depth(self) -> int:  # type: ignore[override]
        return max(proposal.max_depth for proposal in self.proposals)

    def root(self) -> Frontier:
        raise NotImplementedError

    def expand(self, at: Frontier, k: int) -> Children:
        raise NotImplementedError

    def advance(self, at: Frontier, rows: Tensor, tokens: Tensor) -> Frontier:
        raise NotImplementedError

    def probs(self, at: Frontier) -> Tensor:
        raise NotImplementedError
