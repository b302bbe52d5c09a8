"""Parts that the layers of several drafters are made of."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftwood.plugins.drafters.common.keys import Llama3Scaling

Turn = tuple[Tensor, Tensor]
"""Cosines and sines of positions, (..., 1, head_dim): the 1 is the head axis."""

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


class Rotary:
    """Rotary position tables in float32, computed once and grown when a position exceeds them."""

    def __init__(
        self, head_dim: int, theta: float, positions: int, scaling: Llama3Scaling | None = None
    ) -> None:
        self.head_dim, self.theta, self.size, self.scaling = head_dim, theta, positions, scaling
        self._tables: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def __call__(self, positions: Tensor, dtype: torch.dtype) -> Turn:
        """Of int64 positions (...,) below the reserved size, in `dtype`."""
        cos, sin = self.table(positions.device, dtype)[:, positions]
        return cos[..., None, :], sin[..., None, :]

    def reserve(self, size: int) -> None:
        """Make room for positions below `size`."""
        if size > self.size:
            self.size = 2 * size
            self._tables.clear()

    def table(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        """(2, size, head_dim) cosines and sines. Another tensor when more is reserved: whoever
        captured work that reads it holds on to it."""
        if (device, dtype) not in self._tables:
            half = torch.arange(0, self.head_dim, 2, device=device, dtype=torch.float32)
            frequency = self.theta ** -(half / self.head_dim)
            if self.scaling is not None:
                frequency = _scaled(frequency, self.scaling)
            angle = torch.arange(self.size, device=device, dtype=torch.float32)
            angle = torch.outer(angle, frequency).repeat(1, 2)
            self._tables[device, dtype] = torch.stack([angle.cos(), angle.sin()]).to(dtype)
        return self._tables[device, dtype]


def _scaled(frequency: Tensor, by: Llama3Scaling) -> Tensor:
    """Radians per position after Llama 3.1's scaling. turns: how often a frequency goes round in
    the original context; `low` of them and fewer are divided by the factor, `high` and more not."""
    turns = by.original * frequency / (2 * math.pi)
    kept = ((turns - by.low) / (by.high - by.low)).clamp(0.0, 1.0)
    return frequency * (kept + (1.0 - kept) / by.factor)


def rotate(x: Tensor, turn: Turn) -> Tensor:
    """x (..., heads, head_dim) turned to its positions; halves are paired, as in Llama."""
    cos, sin = turn
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


class GatedMLP(nn.Module):
    """down(act(gate(x)) * up(x)). width: d of the input and output. inner: of the middle."""

    def __init__(self, width: int, inner: int, activation: str, bias: bool = False) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=bias)
        self.up_proj = nn.Linear(width, inner, bias=bias)
        self.down_proj = nn.Linear(inner, width, bias=bias)
        self.activation: Callable[[Tensor], Tensor] = ACTIVATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))
