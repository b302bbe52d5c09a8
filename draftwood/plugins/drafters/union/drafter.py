"""`union`: what several drafters propose, in one tree (prompt lookup beside a block drafter)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import evolve
from torch import Tensor

from draftwood.core.interfaces import Drafter, DraftSession, DraftWork, Target
from draftwood.core.options import Sampling
from draftwood.core.proposals import Proposal
from draftwood.plugins.drafters.dflash.drafter import DFlash
from draftwood.plugins.drafters.draft_model.drafter import DraftModel
from draftwood.plugins.drafters.eagle3.drafter import Eagle3
from draftwood.plugins.drafters.ngram.drafter import Ngram
from draftwood.plugins.drafters.options import UnionOptions
from draftwood.plugins.drafters.union.proposal import UnionProposal
from draftwood.plugins.drafters.union.trust import Trust

SOURCES: Mapping[str, Callable[[Any], Drafter]] = {
    "ngram": Ngram,
    "dflash": DFlash,
    "eagle3": Eagle3,
    "draft_model": DraftModel,
}

JUDGED_AT = 1.0
"""Temperature at which sources are compared: at a low one a near miss counts as a miss."""


class UnionSession(DraftSession):
    """One request: a session of each source, and how much each is believed.

    said: what each source gave the next token when it last proposed, (V,) or None for silence;
    None once that was learnt from. waits: whether only the anchor was committed since, so that
    the token they are judged by is the next one.
    """

    def __init__(
        self,
        inner: Sequence[DraftSession],
        columns: Sequence[slice],
        sampling: Sampling,
        trust: Trust,
        said: tuple[Tensor | None, ...] | None = None,
        waits: bool = False,
    ) -> None:
        self.inner, self.columns, self.sampling = tuple(inner), tuple(columns), sampling
        self.trust, self.said, self.waits = trust, said, waits

    def commit(self, tokens: Sequence[int], features: Tensor | None) -> None:
        if self.waits:
            self.learn(tokens[0])
        elif len(tokens) > 1:
            self.learn(tokens[1])
        else:
            self.waits = self.said is not None
        for session, columns in zip(self.inner, self.columns, strict=True):
            none = features is None or columns.start == columns.stop
            session.commit(tokens, None if none else features[:, columns])  # type: ignore[index]

    def learn(self, token: int) -> None:
        """The token that came after what was last proposed for."""
        if self.said is not None:
            given = [None if law is None else float(law[token]) for law in self.said]
            self.trust = self.trust.learn(given)
        self.said, self.waits = None, False

    def fork(self) -> "UnionSession":
        inner = [session.fork() for session in self.inner]
        return UnionSession(inner, self.columns, self.sampling, self.trust, self.said, self.waits)


class Union(Drafter):
    """Mixes the laws of its sources; see `UnionProposal`. Each is believed as far as the tokens
    that came were likely under it, round after round."""

    def __init__(self, options: UnionOptions) -> None:
        self.names = [name for name, _ in options.given]
        self.sources = [SOURCES[name](given) for name, given in options.given]

    @property
    def taps(self) -> tuple[int, ...]:
        """Those of all sources, one after another."""
        return tuple(tap for source in self.sources for tap in source.taps)

    def bind(self, target: Target) -> None:
        for source in self.sources:
            source.bind(target)
        self._vocab_size = target.vocab_size

    def open(self, target: Target, sampling: Sampling) -> UnionSession:
        # Filters apply once, to the mixed law.
        own = Sampling(sampling.temperature)
        inner = [source.open(target, own) for source in self.sources]
        width, start, columns = self._width(target), 0, []
        for source in self.sources:
            end = start + width * len(source.taps)
            columns.append(slice(start, end))
            start = end
        return UnionSession(inner, columns, sampling, Trust.even(len(inner)))

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
        proposals: list[Proposal] = []
        for name, source, inner in zip(self.names, self.sources, session.inner, strict=True):
            part = evolve(item, session=inner, rng=item.rng.stream(name))
            proposals.extend(source.propose([part]))
        union = UnionProposal(
            tuple(proposals),
            tuple(session.trust.weights()),
            session.sampling,
            self._vocab_size,
            any(proposal.pass_per_level for proposal in proposals),
        )
        judged = union.tempered(JUDGED_AT)
        laws = judged.spoken(judged.root())
        session.said = tuple(
            None if law is None or not float(law.sum()) > 0 else law[0] for law in laws
        )
        return union
