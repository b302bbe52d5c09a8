"""`union`: what several drafters propose, in one tree (prompt lookup beside a block drafter)."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

from attrs import define, evolve, field
from torch import Tensor

from draftwood.core.interfaces import Drafter, DraftSession, DraftWork, Kernels, Target
from draftwood.core.kernels.graphs import Capturing
from draftwood.core.options import Sampling
from draftwood.core.pending import Pending
from draftwood.core.proposals import Proposal
from draftwood.plugins.drafters.dflash.drafter import DFlash
from draftwood.plugins.drafters.draft_model.drafter import DraftModel
from draftwood.plugins.drafters.eagle3.drafter import Eagle3
from draftwood.plugins.drafters.ngram.drafter import Ngram
from draftwood.plugins.drafters.options import UnionOptions
from draftwood.plugins.drafters.union.host import HostMixture
from draftwood.plugins.drafters.union.proposal import UnionProposal
from draftwood.plugins.drafters.union.trust import Trust
from draftwood.plugins.drafters.union.voice import Voice
from draftwood.plugins.drafters.union.worth import NODES, Surplus, promised

SOURCES: Mapping[str, Callable[[Any], Drafter]] = {
    "ngram": Ngram,
    "dflash": DFlash,
    "eagle3": Eagle3,
    "draft_model": DraftModel,
}

FREE = {"ngram"}
"""Sources that run no model: asked every round, and first."""


@define(eq=False)
class Source:
    """One drafter's part in a request.

    columns: of the features, which are its own. owed: what was committed and it has not taken in,
    since it was not asked: many tokens at once cost it less.
    """

    session: DraftSession
    columns: slice
    free: bool
    owed: Pending = field(factory=Pending)

    def commit(self, tokens: Sequence[int], features: Tensor | None) -> None:
        own = None if self.columns.start == self.columns.stop else features
        self.owed.add(tokens, None if own is None else own[:, self.columns])
        if self.free or self.owed.full:
            self.settle()

    def settle(self) -> None:
        """Take in what is owed."""
        if self.owed.tokens:
            self.session.commit(*self.owed.take())

    def fork(self) -> "Source":
        return evolve(self, session=self.session.fork(), owed=self.owed.copy())


class UnionSession(DraftSession):
    """One request: its sources, how much each is believed, and what asking all is worth.

    said: what each source last proposed, None for those that were not asked; empty once that was
    learnt from. waits: whether only the anchor was committed since, so that the token they are
    judged by is the next one.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        sampling: Sampling,
        trust: Trust,
        surplus: Surplus | None = None,
        said: tuple[Voice | None, ...] = (),
        waits: bool = False,
    ) -> None:
        self.sources, self.sampling = tuple(sources), sampling
        self.trust, self.surplus = trust, surplus or Surplus()
        self.said, self.waits = said, waits

    def commit(self, tokens: Sequence[int], features: Tensor | None) -> None:
        if self.waits:
            self.learn(tokens[0])
        elif len(tokens) > 1:
            self.learn(tokens[1])
        else:
            self.waits = bool(self.said)
        for source in self.sources:
            source.commit(tokens, features)

    def learn(self, token: int) -> None:
        """The token that came after what was last proposed for."""
        if self.said:
            given = [None if voice is None else voice.chance(token) for voice in self.said]
            self.trust = self.trust.learn(given)
        self.said, self.waits = (), False

    def fork(self) -> "UnionSession":
        sources = [source.fork() for source in self.sources]
        return UnionSession(sources, self.sampling, self.trust, self.surplus, self.said, self.waits)


class Union(Drafter):
    """Mixes the distributions of its sources; see `UnionProposal`. Each is believed as far as the
    tokens that came were likely under it, round after round.

    Sources that run a model are left out of rounds in which what they usually add to a promise
    like that of the others is worth less than their time (`Limits.pass_price`). Which are asked
    depends on committed tokens and on times alone, never on a draw, so distributions stay exact.
    """

    _vocab_size: int  # of the target, once bound

    def __init__(self, options: UnionOptions) -> None:
        self.names = [name for name, _ in options.given]
        self.sources = [SOURCES[name](given) for name, given in options.given]

    @property
    def taps(self) -> tuple[int, ...]:
        """Those of all sources, one after another."""
        return tuple(tap for source in self.sources for tap in source.taps)

    def bind(self, target: Target) -> Self:
        bound = copy.copy(self)
        bound.sources = [source.bind(target) for source in self.sources]
        bound._vocab_size = target.vocab_size
        return bound

    def capture(self, kernels: Kernels, capturing: Capturing) -> Self:
        captured = copy.copy(self)
        # A copy of `capturing` for each source: capturing one may fail where another works.
        captured.sources = [source.capture(kernels, evolve(capturing)) for source in self.sources]
        return captured

    def open(self, target: Target, sampling: Sampling) -> UnionSession:
        # Filters apply once, to the mixed distribution.
        own = Sampling(sampling.temperature)
        width, start, sources = self._width(target), 0, []
        for name, drafter in zip(self.names, self.sources, strict=True):
            end = start + width * len(drafter.taps)
            session = drafter.open(target, own)
            sources.append(Source(session, slice(start, end), name in FREE))
            start = end
        return UnionSession(sources, sampling, Trust.even(len(sources)))

    def _width(self, target: Target) -> int:
        """Columns of one tapped layer."""
        return target.embedding_weight().shape[1] if self.taps else 0

    def propose(self, work: Sequence[DraftWork]) -> list[UnionProposal]:
        return [self._propose(item) for item in work]

    def _propose(self, item: DraftWork) -> UnionProposal:
        session = item.session
        assert isinstance(session, UnionSession)
        if session.waits:
            session.learn(item.anchor)
        free = [i for i, source in enumerate(session.sources) if source.free]
        rest = [i for i, source in enumerate(session.sources) if not source.free]
        proposals = self._ask(free, item)
        voices = self._voices(proposals)
        # Without a price, or with nothing to compare, there is no question.
        price = item.limits.pass_price if free and rest else 0.0
        promise = self._promise(voices, item) if price > 0.0 else None
        if promise is not None and not session.surplus.pays(promise, price):
            session.surplus = session.surplus.after_skip(promise)
        else:
            asked = self._ask(rest, item)
            proposals |= asked
            voices |= self._voices(asked)
            whole = self._promise(voices, item) if promise is not None else None
            if promise is not None and whole is not None:
                session.surplus = session.surplus.learn(promise, whole - promise)
        session.said = tuple(voices.get(i) for i in range(len(session.sources)))
        spoke, weights = sorted(proposals), session.trust.weights()
        total = sum(weights[i] for i in spoke)
        return UnionProposal(
            tuple(proposals[i] for i in spoke),
            tuple(weights[i] / total for i in spoke),
            session.sampling,
            self._vocab_size,
        )

    def _ask(self, which: Iterable[int], item: DraftWork) -> dict[int, Proposal]:
        """Proposals of these sources, by their place."""
        session = item.session
        assert isinstance(session, UnionSession)
        proposals = {}
        for i in which:
            source = session.sources[i]
            source.settle()
            part = evolve(item, session=source.session, rng=item.rng.stream(self.names[i]))
            (proposals[i],) = self.sources[i].propose([part])
        return proposals

    def _voices(self, proposals: Mapping[int, Proposal]) -> dict[int, Voice]:
        return {i: Voice.of(one, self._vocab_size) for i, one in proposals.items()}

    def _promise(self, voices: Mapping[int, Voice], item: DraftWork) -> float | None:
        """Tokens that a round with these sources is expected to commit, the bonus included; None
        if to know it would take more passes."""
        session = item.session
        assert isinstance(session, UnionSession)
        listed = [voice.listed for voice in voices.values() if voice.listed is not None]
        if len(listed) < len(voices):
            return None
        weights = session.trust.weights()
        mixture = HostMixture(listed, [weights[i] for i in voices])
        depth = max(voice.depth for voice in voices.values())
        if item.limits.depth is not None:
            depth = min(depth, item.limits.depth)
        return promised(mixture.following, depth, min(NODES, item.limits.nodes))
