"""`drafter.algorithm: dflash`: block drafters, trained on many anchors of each text at once."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from draftwood.core.checkpoints import fetch
from draftwood.core.errors import PairingError
from draftwood.core.hf.versions import text_config
from draftwood.plugins.drafters.dflash.config import DFlashConfig
from draftwood.plugins.drafters.dflash.model import DFlashModel
from draftwood.training.branch_evaluation import BranchAcceptance
from draftwood.training.branch_head import label_log_probs
from draftwood.training.config import (
    BlockOptions,
    BlockShape,
    DFlashTraining,
    SelectorShape,
    SingleOptions,
)
from draftwood.training.evaluation import Acceptance, accepted
from draftwood.training.export import export
from draftwood.training.inherited import embedding_scale, final_norm, rope_theta
from draftwood.training.objectives import Blocks, find
from draftwood.training.pace import Clock, Progress
from draftwood.training.packing import draw
from draftwood.training.trainable import Data, Trainable
from draftwood.training.vocabulary import as_drafts, coverage, draft_ids, most_frequent, offsets

COLDEST = 0.5
"""Colder texts, greedy ones among them, count as written at this temperature in `tempered`."""


class TrainableBlocks(Trainable):
    """A DFlash drafter. embedding, head: the target's (V, d), frozen, in float32; of a drafter
    with a reduced vocabulary, `head` becomes the rows of its tokens (V_draft, d)."""

    model: DFlashModel

    def __init__(
        self,
        model: DFlashModel,
        embedding: Tensor,
        head: Tensor,
        options: BlockOptions,
        *,
        trained: bool = False,
    ) -> None:
        self.model, self.embedding, self.head, self.options = model, embedding, head, options
        self.trained = trained  # before: it reads features as they are
        self.objective = find(options)
        self.wants_likelihoods = options.objective == "al"
        self.sizes: Tensor | None = None  # what features are divided by

    @classmethod
    def of(cls, config: DFlashTraining, target: Any, tokenizer: Any) -> "TrainableBlocks":
        """A new one for a loaded target. Raises PairingError or ConfigError where they do not
        fit."""
        find(config.train)
        shape = config.drafter
        drafter = drafter_config(shape, target.model, tokenizer, shape.vocabulary, shape.selector)
        head = target.head_weight().detach().float()
        if shape.init is None:
            model = initialise(DFlashModel(drafter), target.model)
        else:
            model, head = _from_checkpoint(shape.init, drafter, head)
        if config.train.selector_only:
            model.requires_grad_(False)
            assert model.selector is not None  # the file says so
            model.selector.requires_grad_(True)
        return cls(
            model.to(target.device).train(),
            target.embedding_weight().detach().float(),
            head,
            config.train,
            trained=shape.init is not None,
        )

    @property
    def matrices(self) -> list[nn.Parameter]:
        """All but the selector's codebooks, whose rows are looked up one by one."""
        selector = self.model.selector
        books = set() if selector is None else {*selector.codebooks}
        return [p for p in super().matrices if p not in books]

    @property
    def layers(self) -> tuple[int, ...]:
        return self.model.config.target_layer_ids

    @property
    def wants_prompts(self) -> bool:  # type: ignore[override]
        return self.reduced and not self.trained

    @property
    def reduced(self) -> bool:
        """Whether the drafter can say only some of the target's tokens."""
        return self.model.config.draft_vocab_size < self.model.config.vocab_size

    def prepare(self, data: Data) -> None:
        if isinstance(self.options, SingleOptions) and self.options.scale_features:
            self.sizes = data.features.sizes().to(self.model.device)
            if self.trained:
                self.model.fc.weight.data *= self.sizes
            else:
                self._start_at_the_size_of_final_states(self.sizes)
        if self.wants_prompts:
            self._choose_vocabulary(data)

    def _start_at_the_size_of_final_states(self, sizes: Tensor) -> None:
        """If the last layer is tapped: what the head reads is then as large as it was made for. The
        weight of the target's norm says so only for the target's own states, which are small where
        it is large; on others it gives logits of hundreds."""
        config = self.model.config
        last = (config.num_target_layers or 0) - 1
        if last in config.target_layer_ids:
            parts = sizes.split(config.target_hidden_size)
            self.model.norm.weight.data.copy_(parts[config.target_layer_ids.index(last)])

    def _choose_vocabulary(self, data: Data) -> None:
        config = self.model.config
        assert data.prompts is not None
        prompts = data.prompts.counts(config.vocab_size)
        ids = most_frequent(data.samples, prompts, config.draft_vocab_size)
        for name, samples in (("train", data.samples), ("heldout", data.heldout)):
            share = coverage(samples, ids, config.vocab_size)
            words = f"{len(ids)} tokens make up {share:.1%} of what was written"
            Progress(f"vocabulary {name}", Clock()).say(words)
        ids = ids.to(self.model.device)
        self.model.d2t, self.head = offsets(ids), self.head[ids]

    def batch(self, data: Data, key: tuple[int, int]) -> tuple[Tensor, ...]:
        """Embeddings, features, anchors, labels, which of those are valid, their log p, the tokens
        before them, and the temperatures of their texts."""
        config, device = self.model.config, self.model.device
        packed = draw(
            data.samples,
            data.features,
            key,
            batch=self.options.batch,
            anchors=self.options.anchors,
            block=config.block_size,
            mask=config.mask_token_id,
            likelihoods=data.likelihoods,
        )
        embeds = self.embedding[packed.tokens.to(device)] * config.input_embedding_scale
        if (ids := self.model.draft_to_target()) is not None:
            own = as_drafts(packed.labels, packed.valid, ids.cpu(), config.vocab_size)
            before = draft_ids(packed.previous, ids.cpu(), config.vocab_size)
            packed = attrs.evolve(packed, labels=own[0], valid=own[1], previous=before)
        parts = attrs.astuple(packed, recurse=False, filter=lambda part, _: part.name != "tokens")
        return embeds, *(part.to(device) for part in parts)

    def loss(self, *batch: Tensor) -> Tensor:
        return self.objective(self._blocks(*batch))

    def _blocks(self, *batch: Tensor) -> Blocks:
        """What the drafter says about a batch."""
        embeds, features, anchors, labels, valid, log_p, previous, temperatures = batch
        features = features.to(embeds.dtype)
        if self.sizes is not None:
            features = features / self.sizes
        heat = temperatures.flatten().clamp_min(COLDEST) if self.options.tempered else None
        with torch.autocast(embeds.device.type, torch.bfloat16, enabled=self.options.autocast):
            hidden = self.model.blocks(features, embeds, anchors).flatten(0, 1)
            branches = label_log_probs(
                self.model,
                hidden[:, 1:],
                labels.flatten(0, 1),
                self.head,
                heat,
                self.options.compile,
                previous.flatten(0, 1),
            )
            prior = self._prior(hidden[:, 0])
        return Blocks(prior, branches, log_p.flatten(0, 1), valid.flatten(0, 1))

    def _prior(self, anchors: Tensor) -> Tensor:
        """(N, d) states of slot 0 -> (N, K) log-probabilities of the branches: one is certain."""
        return torch.zeros((len(anchors), 1), device=anchors.device)

    def evaluate(self, data: Data) -> Sequence[Acceptance | BranchAcceptance]:
        found = data.heldout, data.heldout_features
        return accepted(self.finished(), *found, self.embedding, self.head)

    def export(self, folder: Path) -> None:
        export(self.finished(), folder, head=self.head if self.reduced else None)

    def finished(self) -> DFlashModel:
        """The drafter as others load it, which reads features as they are."""
        if self.sizes is None:
            return self.model
        model = copy.deepcopy(self.model)
        model.fc.weight.data /= self.sizes
        return model


def drafter_config(
    shape: BlockShape,
    model: Any,
    tokenizer: Any,
    vocabulary: int | None = None,
    selector: SelectorShape | None = None,
) -> DFlashConfig:
    """The drafter's config for this target. vocabulary: how many tokens it can say, None for all.
    Raises PairingError for taps, a mask token or a vocabulary that the target does not have."""
    text = text_config(model)
    depth = text.num_hidden_layers
    check_taps(shape.taps, depth)
    mask = shape.mask_token
    if mask is None:
        mask = getattr(tokenizer, "mask_token", None)
    if isinstance(mask, str):
        mask = tokenizer.get_vocab().get(mask)
    if mask is None or not 0 <= mask < text.vocab_size:
        raise PairingError(
            f"drafter.mask_token: {shape.mask_token!r} is no token of the target; name one that "
            f"never occurs in text, by its text or as an id below {text.vocab_size}"
        )
    if vocabulary is not None and vocabulary > text.vocab_size:
        raise PairingError(
            f"drafter.vocabulary: {vocabulary} tokens of a target that has {text.vocab_size}"
        )
    return DFlashConfig(
        hidden_size=text.hidden_size,
        num_layers=shape.layers,
        num_heads=shape.heads,
        num_kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.intermediate,
        vocab_size=text.vocab_size,
        draft_vocab_size=vocabulary or text.vocab_size,
        block_size=shape.block_size,
        mask_token_id=mask,
        target_layer_ids=shape.taps,
        num_target_layers=depth,
        target_hidden_size=text.hidden_size,
        causal=(False,) * shape.layers,
        windows=(None,) * shape.layers,
        rope_theta=rope_theta(text),
        max_position_embeddings=text.max_position_embeddings,
        input_embedding_scale=embedding_scale(model),
        selector_rank=0 if selector is None else selector.rank,
        selector_top_k=0 if selector is None else selector.candidates,
    )


def check_taps(taps: tuple[int, ...], depth: int) -> None:
    """Raises PairingError for a layer that a target of `depth` layers does not have."""
    if bad := [layer for layer in taps if not 0 <= layer < depth]:
        raise PairingError(
            f"drafter.taps: no layer {bad[0]}; the target has layers 0 to {depth - 1}"
        )


def initialise(model: DFlashModel, target: Any = None) -> DFlashModel:
    """Start output projections at zero, so that each layer is the identity, and the final norm as
    the target's, whose head reads it."""
    for layer in model.stacked:
        nn.init.zeros_(layer.self_attn.o_proj.weight)
        nn.init.zeros_(layer.mlp.down_proj.weight)
    if model.selector is not None:
        model.selector.initialise()
    scale = final_norm(target) if target is not None else None
    if scale is not None:
        model.norm.weight.data.copy_(scale)
    return model


def _from_checkpoint(
    init: Path | str, asked: DFlashConfig, head: Tensor
) -> tuple[DFlashModel, Tensor]:
    """The checkpoint `init` in float32, given a fresh selector if it has none and one is asked for,
    and the rows of the target's head (V, d) that it reads. Raises PairingError if it is another
    drafter, or brings a head that is not made of such rows: heads are not trained."""
    found = DFlashModel.from_folder(fetch(str(init)))
    selectorless = attrs.evolve(asked, selector_rank=0, selector_top_k=0)
    check_shape(found.config, asked if found.config.selector_rank else selectorless, init)
    if (ids := found.draft_to_target()) is not None:
        head = head[ids.to(head.device)]
    if found.lm_head is not None:
        own = found.lm_head.weight
        if not torch.equal(head.to(own.device, own.dtype), own):
            raise PairingError(
                f"drafter.init: {init} has a head of its own, and training takes the target's"
            )
        found.lm_head = None
    model = found.float()
    if asked.selector_rank and not found.config.selector_rank:
        model = DFlashModel(asked)
        assert model.selector is not None
        model.selector.initialise()
        model.d2t = found.d2t
        lacking = model.load_state_dict(found.state_dict(), strict=False).missing_keys
        assert all(name.startswith("selector.") for name in lacking)
    return model.requires_grad_(True), head


def check_shape(found: DFlashConfig, asked: DFlashConfig, init: Path | str) -> None:
    """Raises PairingError naming what differs between a checkpoint and what a file asks for."""
    if found.layout != asked.layout:
        raise PairingError(
            f"drafter.init: {init} is in the layout of {found.layout}: `draftwood convert` it to "
            f"{asked.layout} first"
        )
    names = [field.name for field in attrs.fields(DFlashConfig) if field.name != "source"]
    differing = [
        f"{name} is {getattr(found, name)!r} there and {getattr(asked, name)!r} here"
        for name in names
        if getattr(found, name) != getattr(asked, name)
    ]
    if differing:
        raise PairingError(f"drafter.init: {init} is another drafter: {'; '.join(differing)}")
