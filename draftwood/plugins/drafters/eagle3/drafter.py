"""`eagle3`: drafts token by token from the target's features (EAGLE-3)."""

import copy
from collections.abc import Sequence
from typing import Self

import torch
from attrs import frozen
from torch import Tensor

from draftwood.core.checkpoints import fetch
from draftwood.core.errors import CheckpointError, PairingError, RequestError
from draftwood.core.interfaces import Drafter, DraftSession, DraftWork, Target
from draftwood.core.options import Sampling
from draftwood.plugins.drafters.common.autoregressive import CHUNK, MAX_WAITING
from draftwood.plugins.drafters.common.cache import ContextCache
from draftwood.plugins.drafters.common.model import Shared
from draftwood.plugins.drafters.common.placement import placed_like
from draftwood.plugins.drafters.eagle3.config import TAPS
from draftwood.plugins.drafters.eagle3.model import Eagle3Model
from draftwood.plugins.drafters.eagle3.proposal import Eagle3Proposal
from draftwood.plugins.drafters.options import Eagle3Options


@frozen(eq=False)
class ProposedAnchor:
    """An anchor whose row lies behind the committed ones, and is kept if the token is committed.

    Attributes:
        state: (1, d) of its row.
    """

    token: int
    state: Tensor


class Eagle3Session(DraftSession):
    """One request: the drafter's K/V of committed tokens, and tokens without a row yet.

    Row r is of token r + 1, with the feature of token r: features lag by one, and the last one
    waits for the anchor.

    Attributes:
        tokens: The k committed tokens without a row.
        states: (k + 1, W) tapped states of the positions before them, and of the last one.
        length: Committed tokens.
        rows: Rows of committed tokens in the cache.
        ahead: The anchor of the last proposal; None after a commit.
    """

    def __init__(
        self,
        model: Eagle3Model,
        shared: Shared,
        sampling: Sampling,
        cache: ContextCache,
        tokens: tuple[int, ...] = (),
        states: Tensor | None = None,
        length: int = 0,
        ahead: ProposedAnchor | None = None,
    ) -> None:
        self.model, self.shared, self.sampling, self.cache = model, shared, sampling, cache
        self.tokens, self.states, self.length, self.ahead = tokens, states, length, ahead
        self.rows = cache.length

    def commit(self, tokens: Sequence[int], features: Tensor | None) -> None:
        assert features is not None, "eagle3 taps the target's layers"
        held, new = self.states, tuple(tokens)
        if self.ahead is not None and self.ahead.token == new[0]:
            self.rows += 1
            held, new = None, new[1:]
        elif self.length == 0:
            new = new[1:]  # the first token of a text has no feature before it
        self.ahead = None
        self.cache.rollback(self.rows)
        with torch.inference_mode():
            features = features.to(self.model.dtype)
            self.states = features if held is None else torch.cat([held, features])
        self.tokens += new
        self.length += len(tokens)
        if len(self.tokens) > MAX_WAITING:
            self._run(self.tokens, self.states[:-1])
            self.rows = self.cache.length
            self.tokens, self.states = (), self.states[-1:]

    def fork(self) -> "Eagle3Session":
        self.cache.rollback(self.rows)
        return Eagle3Session(
            self.model,
            self.shared,
            self.sampling,
            self.cache.fork(),
            self.tokens,
            self.states,
            self.length,
            self.ahead,
        )

    def anchor(self, token: int) -> Tensor:
        """(1, d) state of the anchor's row, which runs with all waiting tokens."""
        assert self.states is not None, "tokens are committed before the first proposal"
        if self.ahead is None or self.ahead.token != token:
            self.cache.rollback(self.rows)
            state = self._run((*self.tokens, token), self.states)
            self.rows = self.cache.length - 1
            self.tokens, self.states = (), self.states[-1:]
            self.ahead = ProposedAnchor(token, state)
        self.cache.rollback(self.rows + 1)
        return self.ahead.state

    def _run(self, tokens: Sequence[int], states: Tensor) -> Tensor:
        """Add rows for these tokens; returns the state of the last, (1, d)."""
        model, last = self.model, states
        with torch.inference_mode():
            ids = torch.tensor(tokens, device=model.device)
            for part, tapped in zip(ids.split(CHUNK), states.split(CHUNK), strict=True):
                count, start = len(part), self.cache.length
                positions = torch.arange(start + 1, start + 1 + count, device=model.device)
                mask = None
                if count > 1:
                    columns = torch.arange(start + count, device=model.device)
                    mask = columns < positions[:, None]
                features, embeds = model.fuse(tapped), self.shared.embedding[part]
                last = model.run(embeds, features, positions, self.cache, mask)
        return last[-1:]


class Eagle3(Drafter):
    """The autoregressive drafter of EAGLE-3 (arXiv 2503.01840) and EAGLE 3.1.

    One forward pass per tree level. Reads the original and the speculators layouts.
    """

    def __init__(self, options: Eagle3Options) -> None:
        self.options = options
        pickles = options.allow_pickle
        folder = fetch(options.checkpoint, options.revision, pickles=pickles, part="eagle3")
        self.model = Eagle3Model.from_folder(folder, allow_pickle=pickles)
        self._taps = chosen_taps(options, self.model.config.target_layer_ids)
        self._shared: Shared | None = None

    @property
    def taps(self) -> tuple[int, ...]:
        return self._taps

    def bind(self, target: Target) -> Self:
        rows = target.embedding_weight()
        self._check_pairing(target, rows)
        bound = copy.copy(self)
        bound.model = placed_like(self.model, rows)
        bound._shared = bound.model.share(target)
        return bound

    def _check_pairing(self, target: Target, rows: Tensor) -> None:
        config, name = self.model.config, f"drafter {self.options.checkpoint}"
        if rows.shape[1] != config.target_hidden_size:
            raise PairingError(
                f"{name} reads states {config.target_hidden_size} wide, and this target's are "
                f"{rows.shape[1]}: it was trained for another model"
            )
        ids, own = self.model.draft_to_target(), self.model.embed_tokens
        shared = own is None or self.model.lm_head is None
        if shared and rows.shape[1] != config.hidden_size:
            raise PairingError(
                f"{name} is {config.hidden_size} wide and has no embedding or head of its own: it "
                f"cannot use those of a target {rows.shape[1]} wide"
            )
        last = config.draft_vocab_size - 1 if ids is None else int(ids.max())
        if last >= target.vocab_size or (own and own.num_embeddings < target.vocab_size):
            raise PairingError(
                f"{name} was trained for a vocabulary of {config.vocab_size}, and the target has "
                f"{target.vocab_size}"
            )

    def open(self, target: Target, sampling: Sampling) -> Eagle3Session:
        if self._shared is None:
            raise RequestError("a drafter is bound to its target before it opens sessions")
        return Eagle3Session(self.model, self._shared, sampling, ContextCache(self.model))

    def propose(self, work: Sequence[DraftWork]) -> list[Eagle3Proposal]:
        return [self._propose(item) for item in work]

    def _propose(self, item: DraftWork) -> Eagle3Proposal:
        session = item.session
        assert isinstance(session, Eagle3Session)
        assert session.length == item.position, "the context ends before the anchor"
        state = session.anchor(item.anchor)
        depth = self.options.max_depth
        if item.limits.depth is not None:
            depth = min(depth, item.limits.depth)
        return Eagle3Proposal(
            session.model,
            session.shared,
            session.cache,
            session.rows + 1,
            state,
            item.position,
            depth,
            session.sampling,
        )


def chosen_taps(options: Eagle3Options, published: tuple[int, ...] | None) -> tuple[int, ...]:
    """The layers to tap: the option's, else the checkpoint's.

    Raises:
        CheckpointError: Neither says. A default would be a guess: with a wrong layer weights load,
            and only acceptance is poor.
    """
    taps = options.taps or published
    if not taps:
        raise CheckpointError(
            f"{options.checkpoint} does not name the target layers that it reads; set "
            "drafter.taps. EAGLE-3's own release taps layers [1, L // 2 - 1, L - 4] of a target "
            "with L layers"
        )
    expected = len(published) if published else TAPS
    if len(taps) != expected:
        raise CheckpointError(
            f"drafter.taps has {len(taps)} layers, and {options.checkpoint} reads {expected}"
        )
    return taps
