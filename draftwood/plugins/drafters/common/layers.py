"""Building blocks of drafters' layers: rotary positions, attention, gated MLP."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftwood.plugins.drafters.common.config import DrafterConfig, Llama3Scaling

CosSin = tuple[Tensor, Tensor]
"""Cosines and sines of positions, (..., 1, head_dim): the 1 is the head axis."""

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


class Rotary:
    """Rotary position tables in float32, computed once and grown when a position exceeds them.

    Args:
        positions: Positions of the first table.
        scaling: None for unscaled frequencies.
    """

    def __init__(
        self, head_dim: int, theta: float, positions: int, scaling: Llama3Scaling | None = None
    ) -> None:
        self.head_dim, self.theta, self.size, self.scaling = head_dim, theta, positions, scaling
        self._tables: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def __call__(self, positions: Tensor, dtype: torch.dtype) -> CosSin:
        """Cosines and sines of int64 positions (...,) below the reserved size."""
        cos, sin = self.table(positions.device, dtype)[:, positions]
        return cos[..., None, :], sin[..., None, :]

    def reserve(self, size: int) -> None:
        """Make room for positions below `size`."""
        if size > self.size:
            self.size = 2 * size
            self._tables.clear()

    def table(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        """(2, size, head_dim) cosines and sines.

        A larger reservation makes another tensor, so captured work that reads this one must keep a
        reference to it.
        """
        if (device, dtype) not in self._tables:
            half = torch.arange(0, self.head_dim, 2, device=device, dtype=torch.float32)
            frequency = self.theta ** -(half / self.head_dim)
            if self.scaling is not None:
                frequency = _scaled(frequency, self.scaling)
            angle = torch.arange(self.size, device=device, dtype=torch.float32)
            angle = torch.outer(angle, frequency).repeat(1, 2)
            self._tables[device, dtype] = torch.stack([angle.cos(), angle.sin()]).to(dtype)
        return self._tables[device, dtype]


def _scaled(frequency: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Radians per position after Llama 3.1's scaling."""
    turns = scaling.original * frequency / (2 * math.pi)
    kept = ((turns - scaling.low) / (scaling.high - scaling.low)).clamp(0.0, 1.0)
    return frequency * (kept + (1.0 - kept) / scaling.factor)


def rotate(x: Tensor, cos_sin: CosSin) -> Tensor:
    """Rotate x (..., heads, head_dim) to its positions; halves are paired, as in Llama."""
    cos, sin = cos_sin
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


class GroupedQueryAttention(nn.Module):
    """Projections and head norms of grouped-query attention (Llama, Qwen3).

    Args:
        width: Of the input; None for the hidden size.
        head_norms: Whether queries and keys are normed per head.
    """

    def __init__(self, config: DrafterConfig, width: int | None = None, head_norms: bool = True):
        super().__init__()
        d, bias = config.hidden_size, config.attention_bias
        width = width or d
        self.heads, self.kv_heads = config.num_heads, config.num_kv_heads
        self.head_dim = config.head_dim
        self.groups = self.heads // self.kv_heads
        self.q_proj = nn.Linear(width, self.heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(width, self.kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(width, self.kv_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(self.heads * self.head_dim, d, bias=bias)
        eps = config.rms_norm_eps
        self.q_norm = nn.RMSNorm(self.head_dim, eps) if head_norms else None
        self.k_norm = nn.RMSNorm(self.head_dim, eps) if head_norms else None

    def queries(self, x: Tensor, cos_sin: CosSin) -> Tensor:
        """(..., width) -> (..., heads, head_dim), normed and rotated."""
        return self._rotated(self.q_proj(x), self.q_norm, cos_sin)

    def keys_values(self, x: Tensor, cos_sin: CosSin) -> tuple[Tensor, Tensor]:
        """(..., width) -> keys (normed, rotated) and values, (..., kv_heads, head_dim)."""
        values = self.v_proj(x).unflatten(-1, (-1, self.head_dim))
        return self._rotated(self.k_proj(x), self.k_norm, cos_sin), values

    def _rotated(self, x: Tensor, norm: nn.Module | None, cos_sin: CosSin) -> Tensor:
        x = x.unflatten(-1, (-1, self.head_dim))
        return rotate(x if norm is None else norm(x), cos_sin)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Attention of n rows over m columns, and the output projection -> (n, d).

        The queries of a group become rows of their common key head, so K and V are not repeated.

        Args:
            queries: (n, heads, head_dim).
            keys: (kv_heads, m, head_dim); so are the values.
            mask: (n, m), True where a row attends to a column; None for everywhere.
        """
        rows = queries.shape[0]
        q = queries.transpose(0, 1).reshape(self.kv_heads, -1, self.head_dim)
        if mask is not None:
            mask = mask.repeat(self.groups, 1)
        out = F.scaled_dot_product_attention(q[None], keys[None], values[None], attn_mask=mask)
        out = out.view(self.heads, rows, self.head_dim).transpose(0, 1)
        return self.o_proj(out.reshape(rows, -1))


class GatedMLP(nn.Module):
    """down(act(gate(x)) * up(x)), from `width` over `inner` to `width` columns."""

    def __init__(self, width: int, inner: int, activation: str, bias: bool = False) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=bias)
        self.up_proj = nn.Linear(width, inner, bias=bias)
        self.down_proj = nn.Linear(inner, width, bias=bias)
        self.activation: Callable[[Tensor], Tensor] = ACTIVATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))
