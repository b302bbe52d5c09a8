"""A drafter's own K/V cache, written and rolled back in place."""

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from draftwood.core.kernels.buffer_pool import BufferPool
from draftwood.core.kv_buffer import KVBuffer, KVMemory, KVShape
from draftwood.plugins.drafters.common.model import DrafterModel

FIRST = 512
"""Rows that a new cache has room for."""


def allocate(model: DrafterModel, capacity: int) -> KVMemory:
    """New memory for the context of one of the model's requests."""
    dim = model.head_dim
    shape = KVShape(model.kv_heads, dim, dim, model.dtype, model.device)
    return KVMemory.allocate([shape] * model.layers, capacity)


def layer_buffers(memory: KVMemory) -> list[tuple[Tensor, Tensor]]:
    """Whole buffers of keys and values of each layer, (kv_heads, capacity, head_dim)."""
    ((stack, _),) = memory.stacks  # keys and values of each layer alternate
    return [(stack[at, 0], stack[at + 1, 0]) for at in range(0, len(stack), 2)]


class ContextCache(KVBuffer):
    """Keys and values of one request in a drafter.

    Rows behind `length` may be written and then either be kept (`extend`) or overwritten;
    `rollback` drops the last rows. Neither moves anything.

    Args:
        model: Whose layers are cached.
        capacity: Rows to make room for at first; None for the default.
        pool: Where memory comes from; None to allocate it.

    Attributes:
        length: Rows that are held.
    """

    def __init__(
        self,
        model: DrafterModel,
        capacity: int | None = None,
        pool: BufferPool[KVMemory] | None = None,
    ) -> None:
        super().__init__(partial(allocate, model))
        self.length = 0
        self._model = model
        if pool is not None:
            pool.lend(self)
        self.grow(capacity or FIRST, 0)

    def use(self, memory: KVMemory) -> None:
        super().use(memory)
        self._layers = layer_buffers(memory)

    def reserve(self, rows: int) -> None:
        """Make room for `rows` rows behind those held."""
        end = self.length + rows
        if end > self.capacity:
            self.grow(2 * end, self.length)

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write rows (kv_heads, n, head_dim) of one layer behind those held, in reserved room.

        Returns:
            Views of all of the layer's keys and values, (kv_heads, length + n, head_dim).
        """
        end, (all_keys, all_values) = self.length + keys.shape[1], self._layers[layer]
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
        """Write and hold (keys, values) of each layer, (kv_heads, n, head_dim), keys rotated."""
        count = rows[0][0].shape[1]
        self.reserve(count)
        for layer, (keys, values) in enumerate(rows):
            self.write(layer, keys, values)
        self.extend(count)

    def views(self) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of each layer, (kv_heads, length, head_dim)."""
        return [(k[:, : self.length], v[:, : self.length]) for k, v in self._layers]

    def fork(self) -> "ContextCache":
        """An independent copy of the rows that are held, and of those written behind them."""
        twin = ContextCache(self._model, self.capacity, self.pool)
        twin.memory.copy_rows(self.memory, self.capacity)
        twin.length = self.length
        return twin
