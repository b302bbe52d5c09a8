"""What other trees would have got, at every round of texts that the target itself writes.

One decode answers for all methods. In each round every tree in question is grown from the same
context, all of them are merged into one, one forward gives the target's distribution at every node,
and `expected_accepted` says what each tree's rule would have accepted of it, without sampling
noise. The text goes on by `match` on the merged tree: it is the target's own sample, whatever is
compared."""

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
from draftwood.core.options import Sampling
from draftwood.core.proposals import Children, Frontier, Proposal
from draftwood.core.randomness import Randomness
from draftwood.core.tree import TokenTree
from draftwood.core.values import Limits, Verdict
from draftwood.plugins.controllers.fixed import Fixed
from draftwood.plugins.controllers.options import FixedOptions
from draftwood.plugins.verifiers.match import Match
from draftwood.plugins.verifiers.acceptance import expected_accepted

EVERYTHING = 1_000_000
"""Nodes that a merged tree may have: more than it ever has."""

LIKELIEST = 16
"""Of the target's likeliest next tokens so many are counted in `Seen.mass`."""


@frozen(eq=False)
class Offer:
    """What a method would have verified: its rule, and its trees, each with its chance."""

    rule: str
    trees: Sequence[tuple[float, TokenTree]]


@frozen(eq=False)
class Offered:
    """All methods' offers of a round by name; notes: numbers to keep with the round."""

    offers: Mapping[str, Offer]
    notes: Mapping[str, Any] = field(factory=dict)


@frozen
class Seen:
    """One round. accepted: expected drafts by method, the bonus not counted. nodes: mean draft
    nodes by method. entropy: of the target's next token, bits. mass: what its 1, 2, ... likeliest
    next tokens have of the target's distribution together. notes: as they were offered."""

    accepted: Mapping[str, float]
    nodes: Mapping[str, float]
    entropy: float
    mass: tuple[float, ...]
    notes: Mapping[str, Any]


Offering = Callable[[int, Sequence[Proposal], Randomness], Offered]
"""(anchor, each drafter's proposal, draws) -> what the methods would verify."""


class Replay:
    """Decodes texts with a target and shows each round to `offering`.

    drafters: bound to the target; they propose side by side from one context.
    """

    def __init__(self, target: Target, drafters: Sequence[Drafter], offering: Offering) -> None:
        self._merging = _Merging(offering)
        self._judging = _Judging(self._merging)
        self._engine = Engine(
            target,
            self._judging,
            _Beside(drafters),
            self._merging,
            Fixed(FixedOptions(nodes=EVERYTHING)),
        )

    def rounds(self, request: Request) -> list[Seen]:
        """The rounds of one text, those near its end left out where a draft is cut short."""
        self._judging.seen = []
        run = self._engine.open(request)
        while run.finish_reason is None:
            self._engine.step([run])
        return self._judging.seen


class _Merging(TreePolicy):
    """Grows what is offered and keeps it, merged, until it is judged."""

    def __init__(self, offering: Offering) -> None:
        self.offering = offering
        self.offered: Offered | None = None
        self.places: dict[int, list[int]] = {}

    def grow(
        self,
        anchor: int,
        proposal: Proposal,
        limits: Limits,
        should_expand: ShouldExpand,
        rng: Randomness,
    ) -> TokenTree:
        assert isinstance(proposal, _Side)
        self.offered = None
        if limits.depth is not None and limits.depth < proposal.max_depth:
            return TokenTree.root(anchor)
        self.offered = self.offering(anchor, proposal.proposals, rng)
        every = [tree for offer in self.offered.offers.values() for _, tree in offer.trees]
        merged, places = merge(anchor, every)
        self.places = {id(tree): place for tree, place in zip(every, places, strict=True)}
        return merged


class _Judging(Verifier):
    """`match`, which also notes what every offered tree would have got."""

    def __init__(self, merging: _Merging) -> None:
        self.merging, self.match = merging, Match()
        self.seen: list[Seen] = []

    def judge(self, distributions: NodeDistributions, tree: TokenTree, rng: Randomness) -> Verdict:
        offered, self.merging.offered = self.merging.offered, None
        if offered is not None:
            self.seen.append(self._seen(offered, distributions))
        return self.match.judge(distributions, tree, rng)

    def _seen(self, offered: Offered, distributions: NodeDistributions) -> Seen:
        accepted, nodes = {}, {}
        for name, offer in offered.offers.items():
            accepted[name] = nodes[name] = 0.0
            for chance, tree in offer.trees:
                place = self.merging.places[id(tree)]

                def probs(node: int, place: list[int] = place) -> Tensor:
                    return distributions.probs(place[node])

                accepted[name] += chance * expected_accepted(tree, probs, offer.rule)
                nodes[name] += chance * tree.nodes
        root = distributions.probs(0)
        mass = root.topk(min(LIKELIEST, len(root))).values.cumsum(0)
        return Seen(accepted, nodes, _bits(root), tuple(mass.tolist()), offered.notes)


def merge(anchor: int, trees: Sequence[TokenTree]) -> tuple[TokenTree, list[list[int]]]:
    """The prefix tree of several trees with one anchor, and for each tree its nodes' places."""
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
    """Entropy of (V,)."""
    p = probs.double()
    return float(-(p * torch.where(p > 0, p, 1.0).log2()).sum())


class _Session(DraftSession):
    """A session of each drafter, with its columns of the tapped features."""

    def __init__(self, inner: Sequence[DraftSession], columns: Sequence[slice]) -> None:
        self.inner, self.columns = tuple(inner), tuple(columns)

    def commit(self, tokens: Sequence[int], features: Tensor | None) -> None:
        for session, columns in zip(self.inner, self.columns, strict=True):
            session.commit(tokens, None if features is None else features[:, columns])

    def fork(self) -> "_Session":
        return _Session([session.fork() for session in self.inner], self.columns)


class _Beside(Drafter):
    """Several drafters at work on one text."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self.drafters = tuple(drafters)

    @property
    def taps(self) -> tuple[int, ...]:
        return tuple(tap for drafter in self.drafters for tap in drafter.taps)

    def bind(self, target: Target) -> "_Beside":
        bound = _Beside([drafter.bind(target) for drafter in self.drafters])
        bound._width = target.embedding_weight().shape[1] if self.taps else 0
        return bound

    def open(self, target: Target, sampling: Sampling) -> _Session:
        columns, start = [], 0
        for drafter in self.drafters:
            end = start + self._width * len(drafter.taps)
            columns.append(slice(start, end))
            start = end
        return _Session([drafter.open(target, sampling) for drafter in self.drafters], columns)

    def propose(self, work: Sequence[DraftWork]) -> list[Proposal]:
        return [_Side(self._proposals(item)) for item in work]

    def _proposals(self, item: DraftWork) -> tuple[Proposal, ...]:
        assert isinstance(item.session, _Session)
        found: list[Proposal] = []
        pairs = zip(self.drafters, item.session.inner, strict=True)
        for index, (drafter, inner) in enumerate(pairs):
            rng = item.rng.stream(str(index))
            part = evolve(item, session=inner, limits=Limits(EVERYTHING), rng=rng)
            found.extend(drafter.propose([part]))
        return tuple(found)


@frozen(eq=False)
class _Side(Proposal):
    """Proposals beside each other, not a distribution: only `_Merging` looks at them."""

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
