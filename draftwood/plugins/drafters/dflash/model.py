"""The network of a DFlash drafter, for one request at a time, and its training forward.

Letters in shapes: n context rows, B slots, d hidden size, A anchors, S sequences.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftwood.core import devices
from draftwood.core.errors import CheckpointError
from draftwood.plugins.drafters.common.layers import Rotary
from draftwood.plugins.drafters.common.model import DrafterModel
from draftwood.plugins.drafters.dflash.config import JETSPEC_PLUS_PLUS, DFlashConfig
from draftwood.plugins.drafters.dflash.layers import Attend, DrafterLayer
from draftwood.plugins.drafters.dflash.selector import Selector

RENAMED = {"layers.": "stack.", "candidate_selector.": "selector."}
"""Published parameter names, and those here, where `layers` is a number."""

ENCODER = {"encoder.fc.": "fc.", "encoder.output_norm_enc.": "hidden_norm."}
"""Names that differ in checkpoints of transformers' own assistants."""


class DFlashModel(DrafterModel):
    """Computes final states of a block's slots from context features, and their logits."""

    config_class: ClassVar[type[DFlashConfig]] = DFlashConfig
    ignored: ClassVar[tuple[str, ...]] = (*DrafterModel.ignored, "embed_tokens.")
    config: DFlashConfig

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__(config)
        d, eps = config.hidden_size, config.rms_norm_eps
        features = len(config.target_layer_ids) * config.target_hidden_size
        self.fc = nn.Linear(features, d, bias=False)
        self.hidden_norm = nn.RMSNorm(d, eps)
        self.stack = nn.ModuleList(DrafterLayer(config, at) for at in range(config.num_layers))
        self.norm = nn.RMSNorm(d, eps)
        self.selector: Selector | None = Selector(config) if config.selector_rank else None
        # A block keeps its full length at the limit, so positions exceed the limit.
        positions = config.max_position_embeddings + config.block_size
        self.rotary = Rotary(config.head_dim, config.rope_theta, positions)

    def load_published(self, published: Mapping[str, Tensor], folder: Path | str) -> None:
        adapters = sorted(path.name for path in Path(folder).glob("*adapter*"))
        adapters += sorted(str(path) for path in Path(folder).glob("*/adapter_config.json"))
        if adapters:
            raise CheckpointError(f"{folder}: has {adapters[0]}; {JETSPEC_PLUS_PLUS}")
        super().load_published(published, folder)

    @property
    def _names(self) -> dict[str, str]:
        return RENAMED | ENCODER if self.config.layout == "transformers" else RENAMED

    @property
    def stacked(self) -> Iterable[DrafterLayer]:
        """The layers, in order."""
        return cast(Iterable[DrafterLayer], self.stack)

    def context(self, features: Tensor) -> Tensor:
        """Project (n, taps * H) tapped states of committed tokens to (n, d), for all layers."""
        return self.hidden_norm(self.fc(features))

    def context_kv(self, context: Tensor, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Per layer the keys (rotated) and values of context rows, (kv_heads, n, head_dim).

        Context rows do not pass through a layer's input norm or convolution.
        """
        if len(positions) and devices.reads_without_sync(positions.device):
            self.rotary.reserve(int(positions[-1]) + 1)
        return list(self._context_kv(context, positions))

    def _context_kv(self, context: Tensor, positions: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        cos_sin = self.rotary(positions, context.dtype)
        for layer in self.stacked:
            keys, values = layer.self_attn.keys_values(context, cos_sin)
            yield keys.transpose(0, 1), values.transpose(0, 1)

    def block(
        self, embeds: Tensor, positions: Tensor, cached: Sequence[tuple[Tensor, Tensor]]
    ) -> Tensor:
        """One forward pass over a block -> (B, d) final-normed states, the anchor's slot first.

        Slot 0 predicts no token; its state summarises the block.

        Args:
            embeds: (B, d) scaled embedding rows, the anchor's first.
            positions: (B,) int64.
            cached: Per layer, keys and values of the context as `context_kv` gives them, for the
                positions before the block, without gaps.
        """
        self.rotary.reserve(cached[0][0].shape[1] + embeds.shape[0])
        cos_sin = self.rotary(positions, embeds.dtype)
        x = embeds
        for layer, (keys, values) in zip(self.stacked, cached, strict=True):
            mask = layer.mask(keys.shape[1], embeds.shape[0], embeds.device)
            x = layer(x, layer.self_attn, cos_sin, keys, values, mask)
        return self.norm(x)

    def fixed_context(
        self, features: Tensor, rows: Tensor, buffers: Sequence[tuple[Tensor, Tensor]]
    ) -> None:
        """Write keys and values of (n, taps * H) tapped states to rows of whole buffers.

        Args:
            rows: (n,) int64 on the device, also the positions. The rotary tables must cover the
                buffers' capacity.
            buffers: Keys and values of each layer, (kv_heads, capacity, head_dim).
        """
        context = self._context_kv(self.context(features), rows)
        for (keys, values), (k, v) in zip(buffers, context, strict=True):
            keys.index_copy_(1, rows, k)
            values.index_copy_(1, rows, v)

    def fixed_block(
        self,
        embeds: Tensor,
        rows: Tensor,
        buffers: Sequence[tuple[Tensor, Tensor]],
        attend: Sequence[Attend],
    ) -> Tensor:
        """As `block`, behind a context whose length only the device knows.

        Args:
            rows: (B,) int64 on the device, the block's positions and its rows in the buffers. The
                rotary tables must cover the buffers' capacity.
            buffers: As in `fixed_context`.
            attend: Of each layer.
        """
        cos_sin = self.rotary(rows, embeds.dtype)
        x = embeds
        for layer, (keys, values), run in zip(self.stacked, buffers, attend, strict=True):
            x = layer(x, layer.self_attn.fixed, cos_sin, keys, values, rows, run)
        return self.norm(x)

    def logits(self, hidden: Tensor, head: Tensor | None = None) -> Tensor:
        """(..., d) -> (..., V_draft), multiplier and soft cap applied.

        head: The target's (V, d) output weight, for a checkpoint without its own.
        """
        return self.scale_logits(F.linear(hidden, self.output_weight(head)))

    def scale_logits(self, logits: Tensor) -> Tensor:
        """Apply the config's multiplier and soft cap to the head's output."""
        if self.config.output_multiplier != 1.0:
            logits = logits * self.config.output_multiplier
        if (cap := self.config.final_logit_softcapping) is not None:
            logits = torch.tanh(logits / cap) * cap
        return logits

    def blocks(self, features: Tensor, embeds: Tensor, anchors: Tensor) -> Tensor:
        """Many blocks of many sequences at once, for training -> (S, A, B, d), slot 0 included.

        The block at anchor a attends to the context strictly before a, and to itself: exactly
        what `block` computes when a is the last committed token.

        Args:
            features: (S, n, taps * H) of positions 0 to n - 1.
            embeds: (S, A, B, d).
            anchors: (S, A) positions.
        """
        context = self.context(features)
        rows = torch.arange(features.shape[1], device=features.device)
        self.rotary.reserve(features.shape[1] + embeds.shape[2])
        context_cos_sin = self.rotary(rows, embeds.dtype)
        slots = anchors[..., None] + torch.arange(embeds.shape[2], device=embeds.device)
        cos_sin = self.rotary(slots, embeds.dtype)
        x = embeds
        for layer in self.stacked:
            visible = layer.packed_mask(rows, slots, anchors)
            keys, values = layer.self_attn.keys_values(context, context_cos_sin)
            x = layer(x, layer.self_attn.packed, cos_sin, keys, values, visible)
        return self.norm(x)
