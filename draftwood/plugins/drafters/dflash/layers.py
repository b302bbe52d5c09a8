"""The drafter's layer: attention over context and block, a gated MLP, and DFlash 2's convolutions.

Three forwards share every weight and helper: `DrafterLayer.forward` for one block with cached
context, made of few operations because it runs once a round; `fixed` for the same block where
that is captured, which reads the context's length on the device; `packed` for many blocks of
many sequences, for training. Their agreement is tested.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftwood.plugins.drafters.common.layers import GatedMLP, Turn, rotate
from draftwood.plugins.drafters.dflash.config import DFlashConfig

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(heads, B, D) queries, whole buffers of keys and of values -> (B, heads, D)."""


class Attention(nn.Module):
    """Grouped-query attention with normed heads (Qwen3): queries from the block only."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        d, bias = config.hidden_size, config.attention_bias
        self.heads, self.kv_heads = config.num_heads, config.num_kv_heads
        self.head_dim = config.head_dim
        self.groups = self.heads // self.kv_heads
        self.q_proj = nn.Linear(d, self.heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(d, self.kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(d, self.kv_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(self.heads * self.head_dim, d, bias=bias)
        self.q_norm = nn.RMSNorm(self.head_dim, config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(self.head_dim, config.rms_norm_eps)

    def queries(self, x: Tensor, turn: Turn) -> Tensor:
        """(..., d) -> (..., heads, head_dim), normed and rotated."""
        return rotate(self.q_norm(self.q_proj(x).unflatten(-1, (self.heads, -1))), turn)

    def keys_values(self, x: Tensor, turn: Turn) -> tuple[Tensor, Tensor]:
        """(..., d) -> keys (normed, rotated) and values, (..., kv_heads, head_dim)."""
        keys = self.k_norm(self.k_proj(x).unflatten(-1, (self.kv_heads, -1)))
        return rotate(keys, turn), self.v_proj(x).unflatten(-1, (self.kv_heads, -1))

    def forward(
        self, x: Tensor, turn: Turn, keys: Tensor, values: Tensor, mask: Tensor | None
    ) -> Tensor:
        """One block (B, d) over cached (kv_heads, n, head_dim) and itself.

        mask: (B, n + B), True where seen; None for everything. The queries of a group are laid
        side by side as rows of their one key head, so K and V are never repeated.
        """
        slots = x.shape[0]
        q = self.queries(x, turn).transpose(0, 1).reshape(self.kv_heads, -1, self.head_dim)
        k, v = self.keys_values(x, turn)
        k = torch.cat((keys, k.transpose(0, 1)), 1)
        v = torch.cat((values, v.transpose(0, 1)), 1)
        if mask is not None:
            mask = mask.repeat(self.groups, 1)
        out = F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask)
        out = out.view(self.heads, slots, self.head_dim).transpose(0, 1)
        return self.o_proj(out.reshape(slots, -1))

    def fixed(
        self, x: Tensor, turn: Turn, keys: Tensor, values: Tensor, rows: Tensor, attend: Attend
    ) -> Tensor:
        """The same in a layer's whole buffers (kv_heads, capacity, head_dim).

        rows: (B,) int64 on the device, where the block's own keys and values are written: behind
        the context's. attend: queries (heads, B, head_dim) over those buffers.
        """
        k, v = self.keys_values(x, turn)
        keys.index_copy_(1, rows, k.transpose(0, 1))
        values.index_copy_(1, rows, v.transpose(0, 1))
        out = attend(self.queries(x, turn).transpose(0, 1), keys, values)
        return self.o_proj(out.flatten(1))

    def packed(self, x: Tensor, turn: Turn, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
        """Blocks (S, A, B, d) over the context of their sequence (S, n, kv_heads, head_dim).

        seen: (S, A, B, n + B). Scores of context and block are made apart, since every block has
        its own slots but all blocks of a sequence share a context, and meet in one softmax.
        """
        s, a, b, _ = x.shape
        n = keys.shape[1]
        q = self.queries(x, turn).unflatten(-2, (self.kv_heads, self.groups))
        k, v = self.keys_values(x, turn)
        q = q.permute(0, 3, 4, 1, 2, 5) * self.head_dim**-0.5  # S, kv, groups, A, B, head_dim
        k, v = (part.permute(0, 3, 1, 2, 4)[:, :, None] for part in (k, v))  # S, kv, 1, A, B, hd
        context_k, context_v = (part.transpose(1, 2) for part in (keys, values))  # S, kv, n, hd
        rows = q.reshape(s, self.kv_heads, -1, self.head_dim)
        to_context = (rows @ context_k.mT).view(s, self.kv_heads, self.groups, a, b, n)
        scores = torch.cat((to_context, q @ k.mT), -1)
        weights = scores.masked_fill(~seen[:, None, None], -torch.inf).softmax(-1).to(v.dtype)
        from_context = weights[..., :n].reshape(s, self.kv_heads, -1, n) @ context_v
        out = from_context.view(q.shape) + weights[..., n:] @ v
        return self.o_proj(out.permute(0, 3, 4, 1, 2, 5).reshape(s, a, b, -1))


class Conv(nn.Module):
    """DFlash 2's short convolution over a block's slots, with kernels made from the slots.

    conv_s(h)[t, c] = sum_o (base[s, o, c] + D[t, s, o, group(c)]) h[t - o, c], zero before the
    block; s = 0 acts on a sub-layer's input, s = 1 on its output. D is a projection of that input.
    """

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.size, self.group = config.conv_kernel_size, config.conv_group_size
        groups = config.hidden_size // self.group
        self.base_kernel = nn.Parameter(torch.empty(2, self.size, config.hidden_size))
        self.kernel_projection = nn.Linear(config.hidden_size, 2 * self.size * groups, bias=False)

    def kernels(self, x: Tensor) -> Tensor:
        """Sub-layer input after its norm (..., B, d) -> kernels (..., B, 2, size, d)."""
        made = self.kernel_projection(x).unflatten(-1, (2, self.size, -1))
        return made.repeat_interleave(self.group, -1) + self.base_kernel

    def apply_to(self, h: Tensor, kernels: Tensor, side: int) -> Tensor:
        """h (..., B, d), convolved causally over its slots."""
        slots, past = h.shape[-2], self.size - 1
        padded = F.pad(h, (0, 0, past, 0))
        out = kernels[..., side, 0, :] * h
        for back in range(1, self.size):
            shifted = padded[..., past - back : past - back + slots, :]
            out = out + kernels[..., side, back, :] * shifted
        return out


class DrafterLayer(nn.Module):
    """One layer: attention and MLP, each normed, residual, and convolved in DFlash 2."""

    def __init__(self, config: DFlashConfig, at: int) -> None:
        super().__init__()
        self.causal, self.window = config.causal[at], config.windows[at]
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size, config.activation)
        self.attention_conv = Conv(config) if config.conv_kernel_size else None
        self.mlp_conv = Conv(config) if config.conv_kernel_size else None

    def mask(self, context: int, slots: int, device: torch.device) -> Tensor | None:
        """(B, n + B), True where a slot sees a key; None if every slot sees everything."""
        if not self.causal and (self.window is None or self.window >= context + slots):
            return None
        keys = torch.arange(context + slots, device=device)
        return self._sees(keys[context:, None], keys)

    def visible(self, rows: Tensor, slots: Tensor, anchors: Tensor) -> Tensor:
        """(S, A, B, n + B) for packed blocks: the context before the anchor, and the block."""
        context = self._sees(slots[..., None], rows) & (rows < anchors[..., None, None])
        return torch.cat((context, self._sees(slots[..., None], slots[..., None, :])), -1)

    def _sees(self, query: Tensor, key: Tensor) -> Tensor:
        """By position. The window is per query: q - k < W, and k - q < W where not causal."""
        ahead = key - query
        seen = ahead <= 0 if self.causal else torch.ones_like(ahead, dtype=torch.bool)
        return seen if self.window is None else seen & (ahead.abs() < self.window)

    def forward(
        self, x: Tensor, turn: Turn, keys: Tensor, values: Tensor, mask: Tensor | None
    ) -> Tensor:
        """One block (B, d) over its cached context."""
        return self._run(x, self.self_attn, turn, keys, values, mask)

    def fixed(
        self, x: Tensor, turn: Turn, keys: Tensor, values: Tensor, rows: Tensor, attend: Attend
    ) -> Tensor:
        """One block (B, d), with the context in buffers whose length only the device knows."""
        return self._run(x, self.self_attn.fixed, turn, keys, values, rows, attend)

    def packed(self, x: Tensor, turn: Turn, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
        """Blocks (S, A, B, d) over the context of their sequences."""
        return self._run(x, self.self_attn.packed, turn, keys, values, seen)

    def _run(self, x: Tensor, attend: Any, *context: Any) -> Tensor:
        h = self.input_layernorm(x)
        x = x + _convolved(self.attention_conv, h, lambda part: attend(part, *context))
        return x + _convolved(self.mlp_conv, self.post_attention_layernorm(x), self.mlp)


def _convolved(conv: Conv | None, h: Tensor, sub_layer: Any) -> Tensor:
    if conv is None:
        return sub_layer(h)
    kernels = conv.kernels(h)
    return conv.apply_to(sub_layer(conv.apply_to(h, kernels, 0)), kernels, 1)
