"""`draft_model`: a small language model drafts for a large one (arXiv 2211.17192)."""

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
from draftwood.plugins.drafters.common.autoregressive import CHUNK, MAX_WAITING
from draftwood.plugins.drafters.draft_model.proposal import ModelProposal
from draftwood.plugins.drafters.options import DraftModelOptions


@frozen(eq=False)
class ProposedAnchor:
    """An anchor whose row lies behind the committed ones and those of waiting tokens.

    Attributes:
        logits: (1, V) after it.
        waiting: Number of waiting tokens that ran with it.
    """

    token: int
    logits: Tensor
    waiting: int


class ModelSession(DraftSession):
    """One request: the model's K/V of committed tokens, and tokens that wait for a forward pass.

    Attributes:
        waiting: Committed tokens without a committed row.
        length: Committed tokens.
        ahead: The anchor of the last proposal; None after a commit.
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
        self.ahead: ProposedAnchor | None = None

    def commit(self, tokens: Sequence[int], features: Tensor | None) -> None:
        self.waiting += tuple(tokens)
        self.length += len(tokens)
        if self.ahead is not None:
            kept = self.ahead.waiting + (self.ahead.token == tokens[0])
            if rows := list(range(kept)):
                self.inner.commit(rows)
            self.waiting = self.waiting[kept:]
            self.ahead = None
        if self.room < 0:
            return  # the text exceeds the model's context: no more proposals
        if not self.inner.length:
            self.inner.prefill(self.waiting)
            self.waiting = ()
        elif len(self.waiting) > MAX_WAITING:
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
        """Number of further tokens that fit the model's context."""
        limit = self.scorer.max_context
        return torch.inf if limit is None else limit - self.length

    def anchor(self, token: int) -> ProposedAnchor:
        """The anchor, which runs with all waiting tokens."""
        if self.ahead is None or self.ahead.token != token:
            logits = self._score((*self.waiting, token))
            self.ahead = ProposedAnchor(token, logits, len(self.waiting))
        self.inner.drop(keep=self.ahead.waiting + 1)
        return self.ahead

    def _score(self, tokens: Sequence[int]) -> Tensor:
        """Run these tokens behind the committed ones; returns the logits after the last, (1, V)."""
        (forwarded,) = self.scorer.forward([(self.inner, TokenTree.chain(tokens))])
        return forwarded.logits[-1:]


class DraftModel(Drafter):
    """Any causal language model with the target's tokenizer (arXiv 2211.17192, 2302.01318).

    Its own distribution is the proposal, with one forward pass per tree level. Where its context is
    shorter than the text it proposes nothing, and rounds are plain steps.
    """

    _vocabulary: Vocabulary  # once bound

    def __init__(self, options: DraftModelOptions) -> None:
        self.options = options
        self._place = resolve(options.model, "draft")
        # The model loads in `bind`, when the target's device and dtype are known. A bundled model
        # has the tokenizer of its bundled target.
        self._tokenizer = load_tokenizer(
            resolve(options.model, "target"),
            revision=options.revision,
            trust_remote_code=options.trust_remote_code,
        )
        self._scorer: HFTarget | None = None

    def bind(self, target: Target) -> Self:
        """Load the model on the target's device.

        Raises:
            PairingError: The tokenizers differ, or the model has too few rows of vocabulary.
        """
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
                f"draft model {name} has rows for {rows} tokens, and the target needs {needed}"
            )
        bound = copy.copy(self)
        bound._scorer = scorer
        bound._vocabulary = Vocabulary(target.vocab_size)
        return bound

    def open(self, target: Target, sampling: Sampling) -> ModelSession:
        if self._scorer is None:
            raise RequestError("a drafter is bound to its target before it opens sessions")
        return ModelSession(self._scorer, sampling, self._scorer.open())

    def propose(self, work: Sequence[DraftWork]) -> list[Proposal]:
        return [self._propose(item) for item in work]

    def _propose(self, item: DraftWork) -> Proposal:
        session = item.session
        assert isinstance(session, ModelSession)
        assert session.length == item.position, "the context ends before the anchor"
        depth = self.options.max_depth
        if item.limits.depth is not None:
            depth = min(depth, item.limits.depth)
        # The deepest level is proposed without a forward pass, so it needs no room.
        depth = int(min(depth, session.room))
        if depth < 1:
            return LookupPaths((), session.sampling, self._vocabulary.size)
        ahead = session.anchor(item.anchor)
        return ModelProposal(
            session.inner,
            ahead.waiting + 1,
            ahead.logits,
            depth,
            session.sampling,
            self._vocabulary,
        )


def check_tokenizers(name: str, ours: Mapping[str, int], theirs: Mapping[str, int]) -> None:
    """Compare two vocabularies, token to id.

    Ids in only one of them are padding or additional tokens.

    Raises:
        PairingError: Names the first id that stands for different tokens.
    """
    own_tokens = {index: token for token, index in ours.items()}
    for token, index in sorted(theirs.items(), key=lambda pair: pair[1]):
        if own_tokens.get(index, token) != token:
            raise PairingError(
                f"draft model {name} has another tokenizer than the target: id {index} is "
                f"{own_tokens[index]!r} to it and {token!r} to the target\n"
                "  a drafter proposes ids, so both must use the same tokenizer"
            )
