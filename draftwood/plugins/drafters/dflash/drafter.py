"""`dflash`: distributions of a whole block from one forward pass over [anchor, mask, ...]."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Self

import torch
from attrs import frozen
from torch import Tensor

from draftwood.core.assets import Part
from draftwood.core.checkpoints import fetch
from draftwood.core.errors import PairingError, RequestError
from draftwood.core.interfaces import Drafter, DraftSession, DraftWork, Kernels, Target
from draftwood.core.kernels.capture import Capturing
from draftwood.core.options import Sampling
from draftwood.core.proposals import FactorizedProposal, MarkovProposal, Proposal
from draftwood.plugins.drafters.common.cache import ContextCache
from draftwood.plugins.drafters.common.model import Shared
from draftwood.plugins.drafters.common.placement import placed_like
from draftwood.plugins.drafters.dflash.captured import Captured
from draftwood.plugins.drafters.dflash.model import DFlashModel
from draftwood.plugins.drafters.options import DFlashOptions

MARKOV_SCORE_TEMPERATURE = 1.3
"""Lowest temperature at which trees over the selector's distributions are scored by default.
Measured on the bundled drafter: of temperatures from 0.8 to 1.9 its trees accept most at 1.3 and
1.4, 4% more than at 0.8."""


@frozen(eq=False)
class BlockShared(Shared):
    """Shared tensors with `block`, the (B, H) scaled embedding rows of a block.

    Each proposal replaces row 0, the anchor's.
    """

    block: Tensor


class DFlashSession(DraftSession):
    """One request: the drafter's K/V of the context, committed tokens only."""

    def __init__(
        self,
        model: DFlashModel,
        shared: BlockShared,
        sampling: Sampling,
        cache: ContextCache,
        captured: Captured | None = None,
    ) -> None:
        self.model, self.shared, self.sampling, self.cache = model, shared, sampling, cache
        self.captured = captured

    def commit(self, tokens: Sequence[int], features: Tensor | None) -> None:
        assert features is not None, "dflash taps the target's layers"
        with torch.inference_mode():
            features = features.to(self.model.dtype)
            if self.captured is not None and self.captured.commit(self.cache, features):
                return
            context = self.model.context(features)
            start = self.cache.length
            self.model.rotary.reserve(start + len(tokens) + self.model.config.block_size)
            positions = torch.arange(start, start + len(tokens), device=context.device)
            self.cache.append(self.model.context_kv(context, positions))

    def slots(self, anchor: int) -> Tensor:
        """(B, d) final-normed states of the block that begins with the anchor.

        The block keeps its full length, since slots attend to each other.
        """
        if self.captured is not None:
            slots = self.captured.slots(self.cache, anchor)
            if slots is not None:
                return slots
        shared, config = self.shared, self.model.config
        block = shared.block.clone()
        block[0] = shared.embedding[anchor] * config.input_embedding_scale
        start = self.cache.length
        positions = torch.arange(start, start + config.block_size, device=block.device)
        return self.model.block(block, positions, self.cache.views())

    def fork(self) -> "DFlashSession":
        with torch.inference_mode():
            twin = self.cache.fork()
        return DFlashSession(self.model, self.shared, self.sampling, twin, self.captured)


class DFlash(Drafter):
    """The block-diffusion drafter of DFlash (arXiv 2602.06036), both generations.

    A first-generation checkpoint proposes independent positions. In the second generation a
    selector scores pairs of candidates, so a distribution depends on the parent token. Reads the
    z-lab, speculators and transformers layouts.

    Attributes:
        part: The bundled model that "builtin" stands for.
    """

    part: ClassVar[Part] = "drafter"

    def __init__(self, options: DFlashOptions) -> None:
        self.options = options
        folder = fetch(
            options.checkpoint, options.revision, pickles=options.allow_pickle, part=self.part
        )
        self.model = self.load(folder)
        self.config = self.model.config
        self._shared: BlockShared | None = None
        self._captured: Captured | None = None

    def load(self, folder: Path) -> DFlashModel:
        """The network of a checkpoint folder."""
        return DFlashModel.from_folder(folder, allow_pickle=self.options.allow_pickle)

    @property
    def taps(self) -> tuple[int, ...]:
        return self.config.target_layer_ids

    def bind(self, target: Target) -> Self:
        embedding = target.embedding_weight()
        self._check_pairing(target, embedding)
        bound = copy.copy(self)
        bound.model = placed_like(self.model, embedding)
        config = self.config
        ids = torch.full((config.block_size,), config.mask_token_id, device=embedding.device)
        with torch.inference_mode():
            block = embedding[ids] * config.input_embedding_scale
        shared = bound.model.share(target)
        bound._shared = BlockShared(shared.embedding, shared.head, shared.vocabulary, block)
        return bound

    def capture(self, kernels: Kernels, capturing: Capturing) -> Self:
        """Capture the forward pass of a block, and the commit of a round; both have one size."""
        shared = self._shared
        assert shared is not None, "a drafter is bound before it is captured"
        captured = copy.copy(self)
        captured._captured = Captured(
            self.model, shared.block, shared.embedding, kernels, capturing
        )
        return captured

    def _check_pairing(self, target: Target, embedding: Tensor) -> None:
        config = self.config
        name = f"drafter {self.options.checkpoint}"
        if embedding.shape[1] != config.hidden_size:
            raise PairingError(
                f"{name} is {config.hidden_size} wide and this target {embedding.shape[1]}: "
                "it was trained for another model"
            )
        if config.mask_token_id >= embedding.shape[0]:
            raise PairingError(
                f"{name} masks with token {config.mask_token_id}, but the target has "
                f"{embedding.shape[0]} embedding rows"
            )
        if self.model.lm_head is None and config.vocab_size > target.vocab_size:
            raise PairingError(
                f"{name} was trained for a vocabulary of {config.vocab_size}, and the target "
                f"has {target.vocab_size}"
            )

    def open(self, target: Target, sampling: Sampling) -> DFlashSession:
        if self._shared is None:
            raise RequestError("a drafter is bound to its target before it opens sessions")
        captured = self._captured
        cache = ContextCache(self.model, pool=None if captured is None else captured.pool)
        return DFlashSession(self.model, self._shared, sampling, cache, captured)

    def propose(self, work: Sequence[DraftWork]) -> list[Proposal]:
        with torch.inference_mode():
            return [self._propose(item) for item in work]

    def _propose(self, item: DraftWork) -> Proposal:
        session = item.session
        assert isinstance(session, DFlashSession)
        assert session.cache.length == item.position, "the context ends before the anchor"
        slots = session.slots(item.anchor)
        depth = self.config.block_size - 1
        if item.limits.depth is not None:
            depth = min(depth, item.limits.depth)
        return self.proposal(slots[: depth + 1], item.anchor, session)

    def proposal(self, slots: Tensor, anchor: int, session: DFlashSession) -> Proposal:
        """The proposal from final-normed states (1 + D, d), the anchor's slot first."""
        model, shared, hidden = self.model, session.shared, slots[1:]
        logits = model.logits(hidden, shared.head)
        if model.selector is None:
            return FactorizedProposal(logits, session.sampling, shared.vocabulary)
        anchor = shared.vocabulary.draft_id(anchor)
        candidates, first, pair = model.selector.scores(logits, hidden, anchor)
        candidates = shared.vocabulary.tokens(candidates)
        return MarkovProposal(
            candidates,
            first,
            pair,
            session.sampling,
            shared.vocabulary.size,
            min_score_temperature=MARKOV_SCORE_TEMPERATURE,
        )
