"""The layer of a DFlash drafter: attention over context and block, gated MLP, convolutions.

Attention has three forwards on the same weights; tests check that they agree. `forward` runs one
block over cached context, in few operations, since it runs once a round. `fixed` runs the same
block where work is captured, and reads the context's length on the device. `packed` runs many
blocks of many sequences, for training.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftwood.plugins.drafters.common.layers import CosSin, GatedMLP, GroupedQueryAttention
from draftwood.plugins.drafters.dflash.config import DFlashConfig

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(heads, B, D) queries, whole buffers of keys and of values -> (B, heads, D)."""


class Attention(GroupedQueryAttention):
    """Attention with queries from the block only, keys and values from context and block."""

    def forward(
        self, x: Tensor, cos_sin: CosSin, keys: Tensor, values: Tensor, mask: Tensor | None
    ) -> Tensor:
        """One block (B, d) over cached (kv_heads, n, head_dim) and itself.

        mask: (B, n + B), True where a slot attends to a key; None for everywhere.
        """
        k, v = self.keys_values(x, cos_sin)
        k = torch.cat((keys, k.transpose(0, 1)), 1)
        v = torch.cat((values, v.transpose(0, 1)), 1)
        return self.attend(self.queries(x, cos_sin), k, v, mask)

    def fixed(
        self, x: Tensor, cos_sin: CosSin, keys: Tensor, values: Tensor, rows: Tensor, attend: Attend
    ) -> Tensor:
        """The same in a layer's whole buffers (kv_heads, capacity, head_dim).

        Args:
            rows: (B,) int64 on the device, where the block's own keys and values are written:
                behind the context's.
            attend: Attention of queries (heads, B, head_dim) over those buffers.
        """
        k, v = self.keys_values(x, cos_sin)
        keys.index_copy_(1, rows, k.transpose(0, 1))
        values.index_copy_(1, rows, v.transpose(0, 1))
        out = attend(self.queries(x, cos_sin).transpose(0, 1), keys, values)
        return self.o_proj(out.flatten(1))

    def packed(
        self, x: Tensor, cos_sin: CosSin, keys: Tensor, values: Tensor, visible: Tensor
    ) -> Tensor:
        """Blocks (S, A, B, d) over the context of their sequence (S, n, kv_heads, head_dim).

        visible: (S, A, B, n + B). Scores of context and block are computed separately, since every
        block has its own slots but all blocks of a sequence share a context, and meet in one
        softmax.
        """
        s, a, b, _ = x.shape
        n = keys.shape[1]
        q = self.queries(x, cos_sin).unflatten(-2, (self.kv_heads, self.groups))
        k, v = self.keys_values(x, cos_sin)
        q = q.permute(0, 3, 4, 1, 2, 5) * self.head_dim**-0.5  # S, kv, groups, A, B, head_dim
        k, v = (part.permute(0, 3, 1, 2, 4)[:, :, None] for part in (k, v))  # S, kv, 1, A, B, hd
        context_k, context_v = (part.transpose(1, 2) for part in (keys, values))  # S, kv, n, hd
        rows = q.reshape(s, self.kv_heads, -1, self.head_dim)
        to_context = (rows @ context_k.mT).view(s, self.kv_heads, self.groups, a, b, n)
        scores = torch.cat((to_context, q @ k.mT), -1)
        weights = scores.masked_fill(~visible[:, None, None], -torch.inf).softmax(-1).to(v.dtype)
        from_context = weights[..., :n].reshape(s, self.kv_heads, -1, n) @ context_v
        out = from_context.view(q.shape) + weights[..., n:] @ v
        return self.o_proj(out.permute(0, 3, 4, 1, 2, 5).reshape(s, a, b, -1))


class Conv(nn.Module):
    """DFlash 2's short convolution over a block's slots, with kernels that depend on the slots.

    conv_s(h)[t, c] = sum_o (base[s, o, c] + D[t, s, o, group(c)]) h[t - o, c], with zeros before
    the block. s = 0 acts on a sub-layer's input, s = 1 on its output. D is a projection of that
    input.
    """

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.size, self.group = config.conv_kernel_size, config.conv_group_size
        groups = config.hidden_size // self.group
        self.base_kernel = nn.Parameter(torch.empty(2, self.size, config.hidden_size))
        self.kernel_projection = nn.Linear(config.hidden_size, 2 * self.size * groups, bias=False)

    def kernels(self, x: Tensor) -> Tensor:
        """Sub-layer input after its norm (..., B, d) -> kernels (..., B, 2, size, d)."""
        dynamic = self.kernel_projection(x).unflatten(-1, (2, self.size, -1))
        return dynamic.repeat_interleave(self.group, -1) + self.base_kernel

    def apply_to(self, h: Tensor, kernels: Tensor, side: int) -> Tensor:
        """Convolve h (..., B, d) causally over its slots."""
        slots, past = h.shape[-2], self.size - 1
        padded = F.pad(h, (0, 0, past, 0))
        out = kernels[..., side, 0, :] * h
        for back in range(1, self.size):
            shifted = padded[..., past - back : past - back + slots, :]
            out = out + kernels[..., side, back, :] * shifted
        return out


class DrafterLayer(nn.Module):
    """Attention and MLP, each with norm and residual, and in DFlash 2 convolutions.

    Args:
        index: Of the layer, which the config's masks and windows depend on.
    """

    def __init__(self, config: DFlashConfig, index: int) -> None:
        super().__init__()
        self.causal, self.window = config.causal[index], config.windows[index]
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size, config.activation)
        self.attention_conv = Conv(config) if config.conv_kernel_size else None
        self.mlp_conv = Conv(config) if config.conv_kernel_size else None

    def mask(self, context: int, slots: int, device: torch.device) -> Tensor | None:
        """(B, n + B), True where a slot attends to a key; None for everywhere."""
        if not self.causal and (self.window is None or self.window >= context + slots):
            return None
        keys = torch.arange(context + slots, device=device)
        return self._visible(keys[context:, None], keys)

    def packed_mask(self, rows: Tensor, slots: Tensor, anchors: Tensor) -> Tensor:
        """(S, A, B, n + B) for packed blocks: the context before the anchor, and the block."""
        context = self._visible(slots[..., None], rows) & (rows < anchors[..., None, None])
        return torch.cat((context, self._visible(slots[..., None], slots[..., None, :])), -1)

    def _visible(self, query: Tensor, key: Tensor) -> Tensor:
        """By position. The window is per query: q - k < W, and k - q < W where not causal."""
        ahead = key - query
        visible = ahead <= 0 if self.causal else torch.ones_like(ahead, dtype=torch.bool)
        return visible if self.window is None else visible & (ahead.abs() < self.window)

    def forward(self, x: Tensor, attend: Callable[..., Tensor], *context: Any) -> Tensor:
        """Run a block or packed blocks x (..., B, d).

        Args:
            attend: `self_attn`, or its method `fixed` or `packed`.
            context: The arguments of `attend` after the normed x.
        """
        h = self.input_layernorm(x)
        x = x + _convolved(self.attention_conv, h, lambda part: attend(part, *context))
        return x + _convolved(self.mlp_conv, self.post_attention_layernorm(x), self.mlp)


def _convolved(conv: Conv | None, h: Tensor, sub_layer: Any) -> Tensor:
    """The sub-layer of h, with its input and output convolved."""
    if conv is None:
        return sub_layer(h)
    kernels = conv.kernels(h)
    return conv.apply_to(sub_layer(conv.apply_to(h, kernels, 0)), kernels, 1)
