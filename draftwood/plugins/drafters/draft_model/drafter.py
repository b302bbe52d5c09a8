"""`draft_model`: a small language model drafts for a large one (Leviathan et al. 2023)."""

import copy
from collections.abc import Mapping, Sequence
from typing import Self

import torch
from attrs import frozen
from torch import Tensor

from draftwood.core.assets import resolve
from draftwood.core.errors import PairingError, RequestError
from draftwood.core.hf import HFTarget, load_target, load_tokenizer
from draftwood.core.hf.session import HFSession
from draftwood.core.interfaces import Drafter, DraftSession, DraftWork, Target
from draftwood.core.options import Sampling
from draftwood.core.proposals import LookupPaths, Proposal, Vocabulary
from draftwood.core.tree import TokenTree
from draftwood.plugins.drafters.draft_model.proposal import ModelProposal
from draftwood.plugins.drafters.options import DraftModelOptions

AT_ONCE = 32
"""Committed tokens that wait for the next proposal's pass. More of them (a prompt, or text from
while the drafter was off) are run when they are committed: they are not the price of a draft."""

CHUNK = 1024
"""Most tokens of one pass."""


@frozen(eq=False)
class Ahead:
    """An anchor that was proposed after, and the (1, V) logits after it. The rows of `waiting`
    tokens and its own lie behind the committed ones, uncommitted."""

    token: int
    logits: Tensor
    waiting: int


class ModelSession(DraftSession):
    """One request: the model's K/V of committed tokens, and those that wait for a pass.

    waiting: committed tokens without a committed row. length: committed tokens.
    """

    def __init__(
        self,
        scorer: HFTarget,
        sampling: Sampling,
        inner: HFSession,
        waiting: tuple[int, ...] = (),
        length: int = 0,
    ) -> None:
        self.scorer, self.sampling, self.inner = scorer, sampling, inner
        self.waiting, self.length = waiting, length
        self.ahead: Ahead | None = None

    def commit(self, tokens: Sequence[int], features: Tensor | None) -> None:
        self.waiting += tuple(tokens)
        self.length += len(tokens)
        if self.ahead is not None:
            said = self.ahead.token == tokens[0]
            if rows := list(range(self.ahead.waiting + said)):
                self.inner.commit(rows)
            self.waiting = self.waiting[len(rows) :]
            self.ahead = None
        if self.room < 0:
            return  # the text is past what the model can hold: nothing will be proposed any more
        if not self.inner.length:
            self.inner.prefill(self.waiting)
            self.waiting = ()
        elif len(self.waiting) > AT_ONCE:
            for start in range(0, len(self.waiting), CHUNK):
                part = self.waiting[start : start + CHUNK]
                self._score(part)
                self.inner.commit(list(range(len(part))))
            self.waiting = ()

    def fork(self) -> "ModelSession":
        inner = self.inner.fork()
        return ModelSession(self.scorer, self.sampling, inner, self.waiting, self.length)

    @property
    def room(self) -> float:
        """Tokens that the model can hold behind those committed."""
        limit = self.scorer.max_context
        return torch.inf if limit is None else limit - self.length

    def anchor(self, token: int) -> Ahead:
        """The anchor, run with all that wait."""
        if self.ahead is None or self.ahead.token != token:
            logits = self._score((*self.waiting, token))
            self.ahead = Ahead(token, logits, len(self.waiting))
        self.inner.drop(keep=self.ahead.waiting + 1)
        return self.ahead

    def _score(self, tokens: Sequence[int]) -> Tensor:
        """Run these tokens behind the committed ones; returns the last one's logits, (1, V)."""
        depths = list(range(len(tokens)))
        chain = TokenTree.from_lists(list(tokens), [-1, *depths[:-1]], depths, [0.0] * len(tokens))
        (forwarded,) = self.scorer.forward([(self.inner, chain)])
        return forwarded.logits[-1:]


@frozen(eq=False)
class Pair:
    """The model that drafts, and where its vocabulary lies in the target's."""

    scorer: HFTarget
    vocabulary: Vocabulary


class DraftModel(Drafter):
    """Any causal language model with the target's tokenizer (arXiv 2211.17192, 2302.01318).

    It proposes its own distribution token by token, one pass per level of a tree. Where its context
    is shorter than the text it proposes nothing, and rounds are plain steps."""

    def __init__(self, options: DraftModelOptions) -> None:
        self.options = options
        self._place = resolve(options.model, "draft")
        # Loaded when the target's device and dtype are known; its tokenizer already tells whether
        # there is anything to load. A bundled one's lies with the target it was trained beside.
        self._tokenizer = load_tokenizer(
            resolve(options.model, "target"),
            revision=options.revision,
            trust_remote_code=options.trust_remote_code,
        )
        self._pair: Pair | None = None

    def bind(self, target: Target) -> Self:
        """Load the model beside the target. Raises PairingError, naming the first token that
        differs, if the two do not share a tokenizer."""
        name = str(self.options.model)
        theirs = target.vocabulary()
        ours = None if self._tokenizer is None else self._tokenizer.get_vocab()
        if theirs is not None and ours is not None:
            check_tokenizers(name, ours, theirs)
        scorer = load_target(
            self._place,
            revision=self.options.revision,
            device=str(target.device),
            dtype=str(target.embedding_weight().dtype).removeprefix("torch."),
            trust_remote_code=self.options.trust_remote_code,
            allow_pickle=self.options.allow_pickle,
            tokenizer=self._tokenizer,
        )
        needed = target.vocab_size if theirs is None else 1 + max(theirs.values())
        rows = scorer.embedding_weight().shape[0]
        if needed > rows:
            raise PairingError(
                f"draft model {name} has rows for {rows} tokens, and the target says {needed}"
            )
        bound = copy.copy(self)
        bound._pair = Pair(scorer, Vocabulary(target.vocab_size))
        return bound

    def open(self, target: Target, sampling: Sampling) -> ModelSession:
        if self._pair is None:
            raise RequestError("a drafter is bound to its target before it opens sessions")
        scorer = self._pair.scorer
        return ModelSession(scorer, sampling, scorer.open())

    def propose(self, work: Sequence[DraftWork]) -> list[Proposal]:
        return [self._propose(item) for item in work]

    def _propose(self, item: DraftWork) -> Proposal:
        session = item.session
        assert isinstance(session, ModelSession)
        assert self._pair is not None
        assert session.length == item.position, "the context ends before the anchor"
        depth = self.options.max_depth
        if item.limits.depth is not None:
            depth = min(depth, item.limits.depth)
        # The deepest level is only proposed, never run: it needs no room.
        depth = int(min(depth, session.room))
        if depth < 1:
            return LookupPaths((), session.sampling, self._pair.vocabulary.size)
        ahead = session.anchor(item.anchor)
        return ModelProposal(
            session.scorer,
            session.inner,
            ahead.waiting + 1,
            ahead.logits,
            depth,
            session.sampling,
            self._pair.vocabulary,
        )


def check_tokenizers(name: str, ours: Mapping[str, int], theirs: Mapping[str, int]) -> None:
    """Raise PairingError with the first id that means one token to the draft model and another to
    the target. Ids that only one of them has are its padding or its extra tokens."""
    mine = {index: token for token, index in ours.items()}
    for token, index in sorted(theirs.items(), key=lambda pair: pair[1]):
        if mine.get(index, token) != token:
            raise PairingError(
                f"draft model {name} has another tokenizer than the target: id {index} is "
                f"{mine[index]!r} to it and {token!r} to the target\n"
                "  a drafter proposes ids, so both must mean the same by them"
            )
