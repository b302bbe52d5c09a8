"""The network of a DFlash drafter, both generations, written for one request at a time.

A block of slots [anchor, MASK, ...] attends to the context (the target's own hidden states, mixed
by `fc`) and to itself; one pass gives a distribution for every slot. DFlash, arXiv 2602.06036; the
second generation adds short convolutions around each sub-layer and a selector over candidates.

Tensors have no batch axis except in `blocks`, the training forward. Letters in shapes: n context
rows, B slots, d hidden size, A anchors, S sequences.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftwood.core import devices
from draftwood.core.errors import CheckpointError
from draftwood.plugins.drafters.common.layers import Rotary
from draftwood.plugins.drafters.common.weights import fit, read_weights, renamed, target_ids
from draftwood.plugins.drafters.dflash.config import DFlashConfig
from draftwood.plugins.drafters.dflash.layers import Attend, DrafterLayer
from draftwood.plugins.drafters.dflash.selector import Selector

RENAMED = {"layers.": "stack.", "candidate_selector.": "selector."}
"""Published parameter names and ours; `layers` is the number of them here."""

ENCODER = {"encoder.fc.": "fc.", "encoder.output_norm_enc.": "hidden_norm."}
"""What transformers' own assistants call differently."""

COPIES = ("embed_tokens.", "verifier_norm.", "verifier_lm_head.", "t2d")
"""Parameters that some checkpoints repeat from their target, or that follow from others."""


class DFlashModel(nn.Module):
    """Context features in, distributions over the block's slots out.

    layers, kv_heads, head_dim: what a cache of its context must hold.
    """

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.config = config
        self.layers, self.kv_heads = config.num_layers, config.num_kv_heads
        self.head_dim = config.head_dim
        d, eps = config.hidden_size, config.rms_norm_eps
        features = len(config.target_layer_ids) * config.target_hidden_size
        self.fc = nn.Linear(features, d, bias=False)
        self.hidden_norm = nn.RMSNorm(d, eps)
        self.stack = nn.ModuleList(DrafterLayer(config, at) for at in range(config.num_layers))
        self.norm = nn.RMSNorm(d, eps)
        self.selector: Selector | None = Selector(config) if config.selector_rank else None
        self.lm_head: nn.Linear | None = None
        self.register_buffer("d2t", None)
        # A block keeps its full length at the limit, so positions go past it.
        positions = config.max_position_embeddings + config.block_size
        self.rotary = Rotary(config.head_dim, config.rope_theta, positions)

    @classmethod
    def from_folder(cls, folder: Path | str, allow_pickle: bool = False) -> "DFlashModel":
        """Config and weights of a checkpoint, in the weights' own dtype, on the CPU.

        Raises CheckpointError naming every missing or unexpected parameter.
        """
        folder = Path(folder)
        with torch.device("meta"):
            model = cls(DFlashConfig.from_file(folder))
        model.load_weights(folder, allow_pickle)
        return model.eval()

    def load_weights(self, folder: Path | str, allow_pickle: bool = False) -> None:
        """Take the parameters of a checkpoint folder, replacing what is here (meta or not)."""
        self.take(read_weights(folder, allow_pickle), folder)

    def take(self, published: Mapping[str, Tensor], folder: Path | str) -> None:
        """Take these parameters, by their published names. Raises CheckpointError, naming
        `folder`, if they do not fit."""
        found = {
            ours: tensor
            for name, tensor in published.items()
            if not (ours := renamed(name, self._names)).startswith(COPIES)
        }
        self._prepare_head(found, folder)
        fit(self, found, folder, self._published)

    def _prepare_head(self, found: dict[str, Tensor], folder: Path | str) -> None:
        """Make room for the checkpoint's own head and vocabulary map, if it has them."""
        config = self.config
        reduced = config.draft_vocab_size < config.vocab_size
        if reduced and not {"lm_head.weight", "d2t"} <= set(found):
            raise CheckpointError(
                f"{folder}: a draft vocabulary of {config.draft_vocab_size} of "
                f"{config.vocab_size} tokens needs its own lm_head.weight and d2t"
            )
        if "lm_head.weight" in found:
            self.lm_head = nn.Linear(
                config.hidden_size, config.draft_vocab_size, bias=False, device="meta"
            )
        if "d2t" in found:
            self.d2t = torch.empty(config.draft_vocab_size, dtype=torch.long, device="meta")
            found["d2t"] = found["d2t"].long()
            target_ids(found["d2t"], config.vocab_size, folder)

    def published_state(self) -> dict[str, Tensor]:
        """Parameters under their published names, each in its own memory."""
        return {
            self._published(name): tensor.detach().clone()
            for name, tensor in self.state_dict().items()
        }

    @property
    def _names(self) -> dict[str, str]:
        return RENAMED | ENCODER if self.config.layout == "transformers" else RENAMED

    def _published(self, name: str) -> str:
        return renamed(name, {ours: theirs for theirs, ours in self._names.items()})

    @property
    def stacked(self) -> Iterable[DrafterLayer]:
        """The layers, in order."""
        return cast(Iterable[DrafterLayer], self.stack)

    @property
    def dtype(self) -> torch.dtype:
        return self.fc.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.fc.weight.device

    @property
    def has_head(self) -> bool:
        """Whether the checkpoint brings its own output head."""
        return self.lm_head is not None

    def draft_to_target(self) -> Tensor | None:
        """(V_draft,) target ids of the draft vocabulary, None if the two are the same.

        Checkpoints store offsets: target id = draft id + d2t[draft id].
        """
        if self.d2t is None:
            return None
        return self.d2t + torch.arange(self.d2t.shape[0], device=self.d2t.device)

    def context(self, features: Tensor) -> Tensor:
        """(n, taps * H) tapped states of committed tokens -> (n, d), shared by all layers."""
        return self.hidden_norm(self.fc(features))

    def context_kv(self, context: Tensor, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Per layer the keys (rotated) and values of context rows, (kv_heads, n, head_dim).

        Context rows do not pass through a layer's input norm or convolution.
        """
        if len(positions) and devices.reads_without_sync(positions.device):
            self.rotary.reserve(int(positions[-1]) + 1)
        return list(self._context_kv(context, positions))

    def _context_kv(self, context: Tensor, positions: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        turn = self.rotary(positions, context.dtype)
        for layer in self.stacked:
            keys, values = layer.self_attn.keys_values(context, turn)
            yield keys.transpose(0, 1), values.transpose(0, 1)

    def block(
        self, embeds: Tensor, positions: Tensor, cached: Sequence[tuple[Tensor, Tensor]]
    ) -> Tensor:
        """One pass over a block -> (B - 1, d), the final-normed states of the mask slots.

        embeds: (B, d) scaled embedding rows, the anchor's first. positions: (B,) int64.
        cached: per layer, keys and values of the context as `context_kv` gives them, for the
        positions before the block, without gaps.
        """
        return self.block_with_anchor(embeds, positions, cached)[1:]

    def block_with_anchor(
        self, embeds: Tensor, positions: Tensor, cached: Sequence[tuple[Tensor, Tensor]]
    ) -> Tensor:
        """The same with slot 0, which predicts no token but sums up the block: (B, d)."""
        self.rotary.reserve(cached[0][0].shape[1] + embeds.shape[0])
        turn = self.rotary(positions, embeds.dtype)
        x = embeds
        for layer, (keys, values) in zip(self.stacked, cached, strict=True):
            mask = layer.mask(keys.shape[1], embeds.shape[0], embeds.device)
            x = layer(x, turn, keys, values, mask)
        return self.norm(x)

    def fixed_context(self, features: Tensor, rows: Tensor, buffers: Tensor) -> None:
        """Write keys and values of (n, taps * H) tapped states to these rows of whole buffers
        (2, layers, kv_heads, capacity, head_dim).

        rows: (n,) int64 on the device, also the positions. The rotary tables must reach as far as
        the buffers.
        """
        found = self._context_kv(self.context(features), rows)
        for keys, values, (k, v) in zip(*buffers, found, strict=True):
            keys.index_copy_(1, rows, k)
            values.index_copy_(1, rows, v)

    def fixed_block(
        self, embeds: Tensor, rows: Tensor, buffers: Tensor, attend: Sequence[Attend]
    ) -> Tensor:
        """As `block_with_anchor`, behind a context whose length only the device knows.

        rows: (B,) int64 on the device, the block's positions and its rows in the whole buffers.
        attend: each layer's. The rotary tables must reach as far as the buffers.
        """
        turn = self.rotary(rows, embeds.dtype)
        x = embeds
        for layer, keys, values, seen in zip(self.stacked, *buffers, attend, strict=True):
            x = layer.fixed(x, turn, keys, values, rows, seen)
        return self.norm(x)

    def logits(self, hidden: Tensor, head: Tensor | None = None) -> Tensor:
        """(..., d) -> (..., V_draft), multiplier and soft cap applied.

        head: the target's (V, d) output weight; the checkpoint's own is used where it has one.
        """
        return self.finished(F.linear(hidden, self.output_weight(head)))

    def output_weight(self, head: Tensor | None) -> Tensor:
        """(V_draft, d): the checkpoint's own head, else the target's, `head`."""
        weight = self.lm_head.weight if self.lm_head is not None else head
        if weight is None:
            raise CheckpointError("the checkpoint has no head of its own: pass the target's")
        return weight

    def finished(self, logits: Tensor) -> Tensor:
        """What the head gave, with the config's multiplier and soft cap."""
        if self.config.output_multiplier != 1.0:
            logits = logits * self.config.output_multiplier
        if (cap := self.config.final_logit_softcapping) is not None:
            logits = torch.tanh(logits / cap) * cap
        return logits

    def blocks(self, features: Tensor, embeds: Tensor, anchors: Tensor) -> Tensor:
        """Many blocks of many sequences at once, for training -> (S, A, B, d), slot 0 included.

        features: (S, n, taps * H) of positions 0 to n - 1. embeds: (S, A, B, d). anchors: (S, A)
        positions. The block at anchor a sees the context strictly before a, and itself: exactly
        what `block` computes when a is the last committed token.
        """
        context = self.context(features)
        rows = torch.arange(features.shape[1], device=features.device)
        self.rotary.reserve(features.shape[1] + embeds.shape[2])
        turn_context = self.rotary(rows, embeds.dtype)
        slots = anchors[..., None] + torch.arange(embeds.shape[2], device=embeds.device)
        turn = self.rotary(slots, embeds.dtype)
        x = embeds
        for layer in self.stacked:
            seen = layer.visible(rows, slots, anchors)
            keys, values = layer.self_attn.keys_values(context, turn_context)
            x = layer.packed(x, turn, keys, values, seen)
        return self.norm(x)
