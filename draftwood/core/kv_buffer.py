"""Growing buffers of keys and values: one implementation for the target's cache and drafters'."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from attrs import define, field, frozen
from torch import Tensor

from draftwood.core.kernels.buffer_pool import BufferPool

ROW_AXIS = 3


@frozen
class KVShape:
    """What one layer caches.

    Attributes:
        heads: K/V heads; 0 for a layer that caches nothing of its own.
        key_dim: Width of a row of keys; `value_dim` of a row of values.
    """

    heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    device: torch.device


@define(eq=False)
class KVMemory:
    """Memory of one cache, allocated once.

    Attributes:
        capacity: Rows that it has room for.
        stacks: K/V of all layers of one shape in one tensor, (members, 1, heads, capacity, dim),
            with the layer of each member and whether it holds that layer's "keys" or "values".
        forwards: Forward passes that were captured on this memory.
    """

    capacity: int
    stacks: list[tuple[Tensor, list[tuple[int, str]]]]
    forwards: dict[Any, Any] = field(factory=dict)

    @classmethod
    def allocate(cls, layout: Sequence[KVShape], capacity: int) -> "KVMemory":
        """Uninitialised memory for layers of these shapes."""
        groups: dict[tuple[Any, ...], list[tuple[int, str]]] = {}
        for layer, shape in enumerate(layout):
            for name, dim in (("keys", shape.key_dim), ("values", shape.value_dim)):
                if shape.heads:
                    key = (shape.heads, dim, shape.dtype, shape.device)
                    groups.setdefault(key, []).append((layer, name))
        stacks = []
        for (heads, dim, dtype, device), members in groups.items():
            size = (len(members), 1, heads, capacity, dim)
            stacks.append((torch.empty(size, dtype=dtype, device=device), members))
        return cls(capacity, stacks)

    def members(self) -> Iterator[tuple[int, str, Tensor]]:
        """(layer, "keys" or "values", its (1, heads, capacity, dim) buffer) of every layer."""
        for stack, members in self.stacks:
            for (layer, name), buffer in zip(members, stack, strict=True):
                yield layer, name, buffer

    def copy_rows(self, source: "KVMemory", rows: int) -> None:
        """Copy the first `rows` rows of every layer from memory of the same layout."""
        for (theirs, _), (ours, _) in zip(source.stacks, self.stacks, strict=True):
            ours.narrow(ROW_AXIS, 0, rows).copy_(theirs.narrow(ROW_AXIS, 0, rows))


class KVBuffer:
    """Base of a cache: memory that is replaced by larger memory as its text grows.

    Attributes:
        held: The memory in use; empty until some is reserved.
        pool: Pool that memory comes from and returns to; None to allocate it.
    """

    def __init__(self, allocate: Callable[[int], KVMemory]) -> None:
        self.held: list[KVMemory] = []
        self.pool: BufferPool[KVMemory] | None = None
        self._allocate = allocate

    @property
    def memory(self) -> KVMemory:
        """The memory in use, which changes when it grows."""
        return self.held[0]

    @property
    def stacks(self) -> list[Tensor]:
        """The tensors of `memory`, without their members; empty before any is reserved."""
        return [stack for memory in self.held for stack, _ in memory.stacks]

    @property
    def capacity(self) -> int:
        return self.held[0].capacity if self.held else 0

    def use(self, memory: KVMemory) -> None:
        """Keep rows in this memory from now on; nothing is copied."""
        self.held[:] = [memory]

    def grow(self, capacity: int, rows: int) -> None:
        """Move to memory of at least this capacity, with the first `rows` rows."""
        replaced = self.held.copy()
        self.use(self.pool.take(capacity) if self.pool else self._allocate(capacity))
        for memory in replaced:
            self.memory.copy_rows(memory, rows)
            if self.pool:
                self.pool.give(memory)
