"""The drafter's own cache: K/V of the context for committed tokens, written in place."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor


class Shaped(Protocol):
    """What a cache must know of its model."""

    @property
    def layers(self) -> int: ...

    @property
    def kv_heads(self) -> int: ...

    @property
    def head_dim(self) -> int: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def device(self) -> torch.device: ...


class ContextCache:
    """Keys and values (layers, kv_heads, capacity, head_dim), grown geometrically. The block's own
    K/V never enter: they are of tokens that may not be committed."""

    def __init__(self, model: Shaped, capacity: int = 512) -> None:
        self.length = 0
        self._model = model
        self._buffers = self._allocate(capacity)

    def _allocate(self, capacity: int) -> Tensor:
        m = self._model
        return torch.empty(
            (2, m.layers, m.kv_heads, capacity, m.head_dim), dtype=m.dtype, device=m.device
        )

    def append(self, rows: Sequence[tuple[Tensor, Tensor]]) -> None:
        """One (k, v) per layer, each (kv_heads, n, head_dim), keys already rotated."""
        end = self.length + rows[0][0].shape[1]
        if end > self._buffers.shape[3]:
            grown = self._allocate(2 * end)
            grown[:, :, :, : self.length] = self._buffers[:, :, :, : self.length]
            self._buffers = grown
        for layer, (keys, values) in enumerate(rows):
            self._buffers[0, layer, :, self.length : end] = keys
            self._buffers[1, layer, :, self.length : end] = values
        self.length = end

    def views(self) -> list[tuple[Tensor, Tensor]]:
        """(k, v) of each layer, (kv_heads, length, head_dim)."""
        keys, values = self._buffers[:, :, :, : self.length]
        return list(zip(keys, values, strict=True))

    def fork(self) -> "ContextCache":
        twin = object.__new__(type(self))
        twin.length, twin._model = self.length, self._model
        twin._buffers = self._buffers.clone()
        return twin
