"""The network of an EAGLE-3 drafter, for one request at a time.

A row belongs to one token and reads the feature of the position before it: for committed tokens
the target's states, projected by `fc`; for drafted ones the drafter's output at the parent. Letters
in shapes: n rows, d hidden size, W width of all tapped states side by side.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftwood.plugins.drafters.common.cache import ContextCache
from draftwood.plugins.drafters.common.layers import Rotary
from draftwood.plugins.drafters.common.model import DrafterModel
from draftwood.plugins.drafters.eagle3.config import Eagle3Config
from draftwood.plugins.drafters.eagle3.layers import FirstLayer, Layer

POSITIONS = 4096
"""Initial size of the rotary table, which grows with the text."""


class Eagle3Model(DrafterModel):
    """Computes a state per row from tokens and features, and logits from states."""

    config_class: ClassVar[type[Eagle3Config]] = Eagle3Config
    config: Eagle3Config

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__(config)
        d, eps = config.hidden_size, config.rms_norm_eps
        width = config.taps * config.target_hidden_size
        self.input_norm = nn.RMSNorm(width, eps) if config.norm_before_fc else None
        norms = (nn.RMSNorm(config.target_hidden_size, eps) for _ in range(config.taps))
        self.fc_norm = nn.ModuleList(norms) if config.fc_norm else None
        self.fc = nn.Linear(width, d, bias=False)
        self.first = FirstLayer(config)
        self.later = nn.ModuleList(Layer(config) for _ in range(config.num_layers - 1))
        self.norm = nn.RMSNorm(d, eps)
        positions = min(POSITIONS, config.max_position_embeddings)
        self.rotary = Rotary(config.head_dim, config.rope_theta, positions, config.rope_scaling)

    @property
    def _names(self) -> dict[str, str]:
        if self.config.layout == "eagle":
            return {"midlayer.": "first."}
        later = {f"layers.{at}.": f"later.{at - 1}." for at in range(1, self.config.num_layers)}
        return {"layers.0.": "first.", **later}

    def fuse(self, states: Tensor) -> Tensor:
        """Project tapped states of committed tokens (n, W) to their features (n, d)."""
        if self.input_norm is not None:
            states = self.input_norm(states)
        if self.fc_norm is not None:
            parts = states.chunk(len(self.fc_norm), -1)
            normed = [norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)]
            states = torch.cat(normed, -1)
        return self.fc(states)

    def run(
        self,
        embeds: Tensor,
        features: Tensor,
        positions: Tensor,
        cache: ContextCache,
        mask: Tensor | None,
    ) -> Tensor:
        """One forward pass over n rows, whose K/V `cache` holds afterwards.

        Args:
            embeds: (n, d) of each token.
            features: (n, d) of the position before each token.
            positions: (n,) int64.
            mask: (n, length + n) bool, which cached and new rows each row attends to; None for all.

        Returns:
            (n, d), the features of rows that follow these.
        """
        rows = embeds.shape[0]
        cache.reserve(rows)
        self.rotary.reserve(cache.length + rows + 1)  # a row's position is at most its place + 1
        cos_sin = self.rotary(positions, embeds.dtype)
        x = self.first.join(embeds, features, cos_sin, cache, mask)
        for at, layer in enumerate(self.later, 1):
            x = layer(x, cos_sin, cache, at, mask)
        cache.extend(rows)
        return self.norm(x) if self.config.norm_output else x

    def logits(self, states: Tensor, head: Tensor | None = None) -> Tensor:
        """States of `run` (..., d) -> (..., V_draft).

        head: The target's (V, d) output weight, for a checkpoint without its own.
        """
        normed = states if self.config.norm_output else self.norm(states)
        return F.linear(normed, self.output_weight(head))
