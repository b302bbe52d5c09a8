"""`ngram`: prompt lookup over prompt and output, with counts. No weights, works with any target."""

import math
from collections.abc import Sequence

from attrs import frozen
from torch import Tensor

from draftwood.core.interfaces import Drafter, DraftSession, DraftWork, Target
from draftwood.core.options import Sampling
from draftwood.core.proposals import LookupProposal
from draftwood.plugins.drafters.ngram.index import Gram, SuffixIndex
from draftwood.plugins.drafters.options import NgramOptions


@frozen(eq=False)
class Continuations(LookupProposal):
    """What may follow the text and each path after it, by the index of the text.

    recent: the text's last tokens, the anchor the last. width: most tokens after one path.
    max_depth: 0 where nothing is known to follow the text.
    """

    index: SuffixIndex
    recent: Gram
    width: int
    max_depth: int
    sampling: Sampling
    vocab_size: int

    def following(self, path: Gram) -> list[tuple[int, float]]:
        candidates = self.index.following(self.recent + path, self.width)
        return [(token, math.log(chance)) for token, chance in candidates]


class NgramSession(DraftSession):
    """The index of one request's committed tokens."""

    def __init__(self, index: SuffixIndex, sampling: Sampling, vocab_size: int) -> None:
        self.index, self.sampling, self.vocab_size = index, sampling, vocab_size

    def commit(self, tokens: Sequence[int], features: Tensor | None) -> None:
        for token in tokens:
            self.index.add(token)

    def fork(self) -> "NgramSession":
        return NgramSession(self.index.fork(), self.sampling, self.vocab_size)


class Ngram(Drafter):
    """Proposes what followed earlier occurrences of the text's last tokens, and of each path's.

    Its proposals have no distribution, so `match` is the verifier for it.
    """

    def __init__(self, options: NgramOptions | None = None) -> None:
        self.options = options or NgramOptions()

    def open(self, target: Target, sampling: Sampling) -> NgramSession:
        options = self.options
        index = SuffixIndex(options.min_ngram, options.max_ngram, options.confidence)
        return NgramSession(index, sampling, target.vocab_size)

    def propose(self, work: Sequence[DraftWork]) -> list[Continuations]:
        return [self._propose(item) for item in work]

    def _propose(self, item: DraftWork) -> Continuations:
        session, options = item.session, self.options
        assert isinstance(session, NgramSession)
        recent = (*session.index.ids[-options.max_ngram :], item.anchor)
        known = session.index.following(recent, 1)
        return Continuations(
            session.index,
            recent,
            options.continuations,
            options.max_depth if known else 0,
            session.sampling,
            session.vocab_size,
        )
