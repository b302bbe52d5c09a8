"""`ngram`: prompt lookup over prompt and output. No weights, works with any target."""

from collections.abc import Sequence

from attrs import define, field
from torch import Tensor

from draftwood.core.interfaces import Drafter, DraftSession, DraftWork, Target
from draftwood.core.options import Sampling
from draftwood.core.proposals import Points
from draftwood.plugins.drafters.options import NgramOptions

Gram = tuple[int, ...]


@define(eq=False)
class NgramSession(DraftSession):
    """Committed tokens and where each n-gram of them ends, so a look-up costs no scan."""

    options: NgramOptions
    sampling: Sampling
    vocab_size: int
    ids: list[int] = field(factory=list)
    ends: dict[Gram, list[int]] = field(factory=dict)

    def commit(self, tokens: Sequence[int], features: Tensor | None) -> None:
        for token in tokens:
            self.ids.append(token)
            end = len(self.ids)
            for n in range(self.options.min_ngram, min(self.options.max_ngram, end) + 1):
                self.ends.setdefault(tuple(self.ids[end - n :]), []).append(end)

    def fork(self) -> "NgramSession":
        ends = {gram: positions.copy() for gram, positions in self.ends.items()}
        return NgramSession(self.options, self.sampling, self.vocab_size, self.ids.copy(), ends)

    def continuations(self, anchor: int) -> list[Gram]:
        """Distinct continuations of the text, longest matching context first, then most recent."""
        options = self.options
        recent = [*self.ids[-options.max_ngram :], anchor]
        found: dict[Gram, None] = {}
        for n in range(min(options.max_ngram, len(recent)), options.min_ngram - 1, -1):
            for end in reversed(self.ends.get(tuple(recent[-n:]), ())):
                path = self.ids[end : end + options.max_depth]
                if len(path) < options.max_depth:
                    path = [*path, anchor]
                found[tuple(path)] = None
                if len(found) == options.continuations:
                    return list(found)
        return list(found)


class Ngram(Drafter):
    """Proposes what followed earlier occurrences of the text's last tokens (prompt lookup).

    A point proposal: it has no law, so `match` is the verifier that serves it best.
    """

    def __init__(self, options: NgramOptions | None = None) -> None:
        self.options = options or NgramOptions()

    def open(self, target: Target, sampling: Sampling) -> NgramSession:
        return NgramSession(self.options, sampling, target.vocab_size)

    def propose(self, work: Sequence[DraftWork]) -> list[Points]:
        proposals = []
        for item in work:
            session = item.session
            assert isinstance(session, NgramSession)
            paths = tuple(session.continuations(item.anchor))
            confidence = self.options.confidence
            proposals.append(Points(paths, session.sampling, session.vocab_size, confidence))
        return proposals
