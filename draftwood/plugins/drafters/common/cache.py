"""A drafter's own cache of keys and values, written and rolled back in place."""

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
    """Keys and values (layers, kv_heads, capacity, head_dim), grown geometrically.

    length: rows that are held. Rows behind it may be written and then either kept (`extend`) or
    overwritten; `rollback` gives up the last ones. Neither moves anything.
    """

    def __init__(self, model: Shaped, capacity: int = 512) -> None:
        self.length = 0
        self._model = model
        self._buffers = self._allocate(capacity)

    def _allocate(self, capacity: int) -> Tensor:
        m = self._model
        return torch.empty(
            (2, m.layers, m.kv_heads, capacity, m.head_dim), dtype=m.dtype, device=m.device
        )

    def reserve(self, rows: int) -> None:
        """Make room for `rows` rows behind those held."""
        end = self.length + rows
        if end > self._buffers.shape[3]:
            grown = self._allocate(2 * end)
            grown[:, :, :, : self.length] = self._buffers[:, :, :, : self.length]
            self._buffers = grown

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Put rows (kv_heads, n, head_dim) of one layer behind those held, in reserved room.

        Returns views of all of the layer's keys and values, (kv_heads, length + n, head_dim).
        """
        end = self.length + keys.shape[1]
        self._buffers[0, layer, :, self.length : end] = keys
        self._buffers[1, layer, :, self.length : end] = values
        return self._buffers[0, layer, :, :end], self._buffers[1, layer, :, :end]

    def extend(self, rows: int) -> None:
        """Hold the first `rows` rows that were written behind."""
        self.length += rows

    def rollback(self, length: int) -> None:
        """Hold only the first `length` rows."""
        self.length = length

    def append(self, rows: Sequence[tuple[Tensor, Tensor]]) -> None:
        """One (k, v) per layer, each (kv_heads, n, head_dim), keys already rotated."""
        count = rows[0][0].shape[1]
        self.reserve(count)
        for layer, (keys, values) in enumerate(rows):
            self.write(layer, keys, values)
        self.extend(count)

    def views(self) -> list[tuple[Tensor, Tensor]]:
        """(k, v) of each layer, (kv_heads, length, head_dim)."""
        keys, values = self._buffers[:, :, :, : self.length]
        return list(zip(keys, values, strict=True))

    def fork(self) -> "ContextCache":
        twin = object.__new__(type(self))
        twin.length, twin._model = self.length, self._model
        twin._buffers = self._buffers.clone()
        return twin
