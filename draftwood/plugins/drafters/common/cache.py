"""A drafter's own cache of keys and values, written and rolled back in place."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from attrs import define, field
from torch import Tensor

from draftwood.core.kernels.graphs import BufferPool

FIRST = 512
"""Rows that a new cache has room for."""


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


@define(eq=False)
class ContextBuffers:
    """Memory of a cache. rows: (2, layers, kv_heads, capacity, head_dim), keys and then values.
    forwards: what was captured on it."""

    rows: Tensor
    forwards: dict[Any, Any] = field(factory=dict)

    @classmethod
    def of(cls, model: Shaped, capacity: int) -> "ContextBuffers":
        """New memory for the context of one of `model`'s requests."""
        size = (2, model.layers, model.kv_heads, capacity, model.head_dim)
        return cls(torch.empty(size, dtype=model.dtype, device=model.device))

    @property
    def capacity(self) -> int:
        return self.rows.shape[3]


class ContextCache:
    """Keys and values (layers, kv_heads, capacity, head_dim), grown geometrically.

    length: rows that are held. Rows behind it may be written and then either kept (`extend`) or
    overwritten; `rollback` gives up the last ones. Neither moves anything. shelf: where its memory
    comes from, None for the allocator. held: that memory.
    """

    def __init__(
        self,
        model: Shaped,
        capacity: int | None = None,
        shelf: BufferPool[ContextBuffers] | None = None,
    ) -> None:
        self.length = 0
        self.shelf: BufferPool[ContextBuffers] | None = None
        self.held: list[ContextBuffers] = []
        self._model = model
        if shelf is not None:
            shelf.lend(self)
        self.held.append(self._allocate(capacity or FIRST))

    def _allocate(self, capacity: int) -> ContextBuffers:
        return self.shelf.take(capacity) if self.shelf else ContextBuffers.of(self._model, capacity)

    @property
    def buffers(self) -> ContextBuffers:
        """The memory it has now: another one after it has grown."""
        return self.held[0]

    def reserve(self, rows: int) -> None:
        """Make room for `rows` rows behind those held."""
        end, old = self.length + rows, self.buffers
        if end > old.capacity:
            grown = self._allocate(2 * end)
            grown.rows[:, :, :, : self.length] = old.rows[:, :, :, : self.length]
            self.held[:] = [grown]
            if self.shelf:
                self.shelf.give(old)

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Put rows (kv_heads, n, head_dim) of one layer behind those held, in reserved room.

        Returns views of all of the layer's keys and values, (kv_heads, length + n, head_dim).
        """
        end, (all_keys, all_values) = self.length + keys.shape[1], self.buffers.rows[:, layer]
        all_keys[:, self.length : end] = keys
        all_values[:, self.length : end] = values
        return all_keys[:, :end], all_values[:, :end]

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
        keys, values = self.buffers.rows[:, :, :, : self.length]
        return list(zip(keys, values, strict=True))

    def fork(self) -> "ContextCache":
        """An independent copy of the rows that are held, and of those written behind them."""
        capacity = self.buffers.capacity
        twin = type(self)(self._model, capacity, self.shelf)
        twin.buffers.rows[:, :, :, :capacity] = self.buffers.rows
        twin.length = self.length
        return twin
