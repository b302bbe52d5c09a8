"""`union`: the proposals of several drafters in one tree (prompt lookup beside a block drafter)."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

from attrs import define, evolve, field, frozen
from torch import Tensor

from draftwood.core.interfaces import Drafter, DraftSession, DraftWork, Kernels, Target
from draftwood.core.kernels.capture import Capturing
from draftwood.core.options import Sampling
from draftwood.core.pending import Pending
from draftwood.core.proposals import Proposal
from draftwood.plugins.drafters.options import UnionOptions
from draftwood.plugins.drafters.union.host_mixture import HostMixture
from draftwood.plugins.drafters.union.marginal_gain import (
    COMPARED_NODES,
    MarginalGain,
    expected_tokens,
)
from draftwood.plugins.drafters.union.proposal import UnionProposal
from draftwood.plugins.drafters.union.source_proposal import SourceProposal
from draftwood.plugins.drafters.union.source_weights import SourceWeights


@frozen
class Source:
    """One drafter of a union.

    Attributes:
        name: Its name in YAML.
        drafter: The drafter.
        lookup: Whether it runs no model: it then proposes in every round, before the others.
    """

    name: str
    drafter: Drafter
    lookup: bool


@define(eq=False)
class SourceSession:
    """One drafter's session in a request.

    Attributes:
        session: The drafter's own session.
        columns: Its columns of the tapped features.
        lookup: As in `Source`.
        pending: Committed tokens that the session has not received. A source that is skipped
            receives many tokens at once later, which costs less.
    """

    session: DraftSession
    columns: slice
    lookup: bool
    pending: Pending = field(factory=Pending)

    def commit(self, tokens: Sequence[int], features: Tensor | None) -> None:
        """Keep committed tokens for the session; a look-up receives them at once."""
        if features is not None:
            tapped = self.columns.start != self.columns.stop
            features = features[:, self.columns] if tapped else None
        self.pending.add(tokens, features)
        if self.lookup or self.pending.full:
            self.settle()

    def settle(self) -> None:
        """Give the session its pending tokens."""
        if self.pending.tokens:
            self.session.commit(*self.pending.take())

    def fork(self) -> "SourceSession":
        return evolve(self, session=self.session.fork(), pending=self.pending.copy())


@define(eq=False)
class UnionSession(DraftSession):
    """One request of a union.

    Attributes:
        sources: The sources' sessions.
        sampling: Of the request.
        weights: Learnt weights of the sources.
        gain: Learnt gain of the sources that run a model.
        proposals: Each source's last proposal, None for one that was skipped; empty once the token
            after it was learnt.
        awaits_next: Whether only the anchor was committed since the last proposal, so that the
            proposed token comes with the next commit.
    """

    sources: Sequence[SourceSession]
    sampling: Sampling
    weights: SourceWeights
    gain: MarginalGain = field(factory=MarginalGain)
    proposals: tuple[SourceProposal | None, ...] = ()
    awaits_next: bool = False

    def commit(self, tokens: Sequence[int], features: Tensor | None) -> None:
        if self.awaits_next:
            self.learn(tokens[0])
        elif len(tokens) > 1:
            self.learn(tokens[1])
        else:
            self.awaits_next = bool(self.proposals)
        for source in self.sources:
            source.commit(tokens, features)

    def learn(self, token: int) -> None:
        """Learn from the token that followed the anchor of the last proposals."""
        if self.proposals:
            probs = [None if source is None else source.prob(token) for source in self.proposals]
            self.weights = self.weights.learn(probs)
        self.proposals, self.awaits_next = (), False

    def fork(self) -> "UnionSession":
        return evolve(self, sources=[source.fork() for source in self.sources])

    def expected_tokens(
        self, proposals: Mapping[int, SourceProposal], item: DraftWork
    ) -> float | None:
        """Tokens that a round with these sources is expected to commit, the bonus included.

        None where a source would have to run its model to tell.
        """
        listed = [source.listed for source in proposals.values() if source.listed is not None]
        if len(listed) < len(proposals):
            return None
        weights = self.weights.normalised()
        mixture = HostMixture(listed, [weights[i] for i in proposals])
        depth = max(source.depth for source in proposals.values())
        if item.limits.depth is not None:
            depth = min(depth, item.limits.depth)
        return expected_tokens(mixture.following, depth, min(COMPARED_NODES, item.limits.nodes))


class Union(Drafter):
    """Mixes the distributions of its sources; see `UnionProposal`.

    The weight of a source follows how probable the committed tokens were under it. Sources that
    run a model are skipped in rounds in which they are expected to add fewer tokens than
    `Limits.pass_price`. Whether they are skipped depends on committed tokens and on times, never
    on a draw, so distributions stay exact.
    """

    _vocab_size: int  # of the target, once bound

    def __init__(self, options: UnionOptions) -> None:
        self.sources = [
            Source(name, entry.build(own), entry.traits(own).form == "lookup")
            for name, own in options.sources.items()
            for entry in (options.sources.entries[name],)
        ]

    @property
    def taps(self) -> tuple[int, ...]:
        """The taps of all sources, one source after another."""
        return tuple(tap for source in self.sources for tap in source.drafter.taps)

    def _with(self, drafters: Iterable[Drafter]) -> Self:
        """A copy with other drafters."""
        union = copy.copy(self)
        pairs = zip(self.sources, drafters, strict=True)
        union.sources = [evolve(source, drafter=drafter) for source, drafter in pairs]
        return union

    def bind(self, target: Target) -> Self:
        bound = self._with(source.drafter.bind(target) for source in self.sources)
        bound._vocab_size = target.vocab_size
        return bound

    def capture(self, kernels: Kernels, capturing: Capturing) -> Self:
        # A copy of `capturing` for each source: capturing one may fail where another works.
        return self._with(
            source.drafter.capture(kernels, evolve(capturing)) for source in self.sources
        )

    def open(self, target: Target, sampling: Sampling) -> UnionSession:
        # Filters apply once, to the mixed distribution.
        unfiltered = Sampling(sampling.temperature)
        layer_width = target.embedding_weight().shape[1] if self.taps else 0
        start, sessions = 0, []
        for source in self.sources:
            columns = slice(start, start + layer_width * len(source.drafter.taps))
            session = source.drafter.open(target, unfiltered)
            sessions.append(SourceSession(session, columns, source.lookup))
            start = columns.stop
        return UnionSession(sessions, sampling, SourceWeights.even(len(sessions)))

    def propose(self, work: Sequence[DraftWork]) -> list[UnionProposal]:
        return [self._propose(item) for item in work]

    def _propose(self, item: DraftWork) -> UnionProposal:
        session = item.session
        assert isinstance(session, UnionSession)
        if session.awaits_next:
            session.learn(item.anchor)
        lookups = [i for i, source in enumerate(self.sources) if source.lookup]
        models = [i for i, source in enumerate(self.sources) if not source.lookup]
        proposals = self._run(lookups, session, item)
        compared = self._compared(proposals)
        # All sources run where a pass has no price or there is nothing to compare.
        price = item.limits.pass_price if lookups and models else 0.0
        base = session.expected_tokens(compared, item) if price > 0.0 else None
        if base is not None and not session.gain.pays(base, price):
            session.gain = session.gain.after_skip(base)
        else:
            model_proposals = self._run(models, session, item)
            proposals |= model_proposals
            compared |= self._compared(model_proposals)
            total = session.expected_tokens(compared, item) if base is not None else None
            if base is not None and total is not None:
                session.gain = session.gain.learn(base, total - base)
        session.proposals = tuple(compared.get(i) for i in range(len(self.sources)))
        active, weights = sorted(proposals), session.weights.normalised()
        mass = sum(weights[i] for i in active)
        return UnionProposal(
            tuple(proposals[i] for i in active),
            tuple(weights[i] / mass for i in active),
            session.sampling,
            self._vocab_size,
        )

    def _run(
        self, indices: Iterable[int], session: UnionSession, item: DraftWork
    ) -> dict[int, Proposal]:
        """The proposals of some sources, by index."""
        proposals = {}
        for i in indices:
            source, own = self.sources[i], session.sources[i]
            own.settle()
            part = evolve(item, session=own.session, rng=item.rng.stream(source.name))
            (proposals[i],) = source.drafter.propose([part])
        return proposals

    def _compared(self, proposals: Mapping[int, Proposal]) -> dict[int, SourceProposal]:
        return {i: SourceProposal.of(each, self._vocab_size) for i, each in proposals.items()}
