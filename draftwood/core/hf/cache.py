"""The target's K/V cache: written in place, rolled back by moving only what was accepted.

transformers' own caches concatenate or re-index everything they hold. Here a forward writes its
rows behind the committed ones, and a commit moves the accepted ones among them up, so the work of
a round does not grow with the context.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from attrs import frozen
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from draftwood.core.kernels.protocol import Kernels
from draftwood.core.kv_buffer import ROW_AXIS, KVBuffer, KVMemory, KVShape

ROWS = 256
"""Capacities are multiples of this, and growth leaves at least as many rows free."""

GROWTH = 1.5
"""Factor by which a full cache grows."""


@frozen
class LayerShape(KVShape):
    """What one layer caches.

    Attributes:
        window: Sliding window in positions, the token itself included; None for full attention.
    """

    window: int | None = None


def window_start(length: int, window: int | None) -> int:
    """First of `length` cached positions that the next token can still see."""
    return 0 if window is None else max(0, length - window + 1)


class _Extent:
    """What a cache and its layers share.

    A reference from layers to the cache would be a cycle, which keeps buffers alive until the next
    garbage collection.

    Attributes:
        length: number of committed rows.
        kept: number of rows behind them that the next forward does not overwrite.
        whole: whether layers return their whole buffers.
        rows: where a forward of fixed size writes, on the device; None for other forwards.
    """

    length = 0
    kept = 0
    whole = False
    rows: Tensor | None = None


class TreeLayer(CacheLayerMixin):
    """One layer's keys and values, (1, heads, capacity, dim) each.

    The first `extent.length` rows are committed; those behind belong to the last forward.
    """

    is_compileable = False
    is_croppable = False

    def __init__(self, shape: LayerShape, extent: _Extent) -> None:
        super().__init__()
        self.window = shape.window
        self.is_sliding = shape.window is not None
        self.extent = extent

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write rows behind the committed ones.

        Args:
            key_states: (1, heads, n, dim).
            value_states: (1, heads, n, dim).

        Returns:
            Views of all rows that attention may read. A sliding layer's view starts at the oldest
            position that the first new row attends to, so its attention costs the window, not the
            context. A whole cache returns its buffers: kernels know which rows to read.
        """
        if self.extent.rows is not None:
            self.keys.index_copy_(2, self.extent.rows, key_states)
            self.values.index_copy_(2, self.extent.rows, value_states)
            return self.keys, self.values
        length, rows = self.extent.length, key_states.shape[-2]
        end = length + self.extent.kept
        self.keys.narrow(2, end, rows).copy_(key_states)
        self.values.narrow(2, end, rows).copy_(value_states)
        if self.extent.whole:
            return self.keys, self.values
        start = window_start(length, self.window)
        size = end + rows - start
        return self.keys.narrow(2, start, size), self.values.narrow(2, start, size)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        start = window_start(self.extent.length, self.window)
        return self.extent.length + self.extent.kept + query_length - start, start

    def get_seq_length(self) -> int:
        return self.extent.length

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length  # its name in older releases

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        raise NotImplementedError("rows are reserved by the cache before a forward")


class TreeCache(Cache, KVBuffer):
    """The K/V of one request.

    Layers of one shape share one buffer, so that a commit is one gather and one copy however many
    layers there are.

    Args:
        layout: One shape per layer.
        whole: Attention is given whole buffers, not views of the rows that it needs.
    """

    def __init__(self, layout: Sequence[LayerShape], *, whole: bool = False) -> None:
        self.layout = tuple(layout)
        self.extent = _Extent()
        self.extent.whole = whole
        Cache.__init__(self, layers=[TreeLayer(shape, self.extent) for shape in self.layout])
        KVBuffer.__init__(self, partial(KVMemory.allocate, self.layout))

    @property
    def length(self) -> int:
        """Committed rows."""
        return self.extent.length

    def reserve(self, rows: int) -> None:
        """Make room for `rows` rows behind the committed and the kept ones."""
        present = self.length + self.extent.kept
        needed = present + rows
        if needed > self.capacity:
            capacity = max(needed + ROWS, int(self.capacity * GROWTH))
            self.grow(-(-capacity // ROWS) * ROWS, present)

    def use(self, memory: KVMemory) -> None:
        super().use(memory)
        for index, name, buffer in memory.members():
            setattr(self.layers[index], name, buffer)
            self.layers[index].is_initialized = True

    @contextmanager
    def views(self) -> Iterator[None]:
        """Let layers return the rows that attention needs inside, not whole buffers."""
        whole, self.extent.whole = self.extent.whole, False
        try:
            yield
        finally:
            self.extent.whole = whole

    def keep(self, rows: int) -> None:
        """Let the next forward write behind the first `rows` uncommitted rows; 0 drops them."""
        self.extent.kept = rows

    def advance(self, rows: int) -> None:
        """Commit the first `rows` rows of the last forward as they are."""
        self.extent.length += rows

    def commit(self, path: Sequence[int], kernels: Kernels | None = None) -> None:
        """Keep these rows of the last forward, in order, behind the committed ones.

        Args:
            path: increasing row numbers, 0 first. Rows that already lie in place do not move.
            kernels: move the others by their `compact`; None moves them by torch.
        """
        stacks = self.stacks
        if kernels is not None:
            kernels.compact(stacks, self.length, path)
            self.advance(len(path))
            return
        start = next((i for i, row in enumerate(path) if row != i), len(path))
        if start < len(path):
            moved = torch.tensor(path[start:])
            for stack in stacks:
                rows = stack.narrow(ROW_AXIS, self.length, path[-1] + 1)
                kept = rows.index_select(ROW_AXIS, moved.to(stack.device))
                rows.narrow(ROW_AXIS, start, len(path) - start).copy_(kept)
        self.advance(len(path))

    def pretend(self, rows: int) -> None:
        """Hold `rows` rows of zeros, for timing: it does not depend on their values."""
        self.extent.length = 0
        self.reserve(rows)
        for stack in self.stacks:
            stack.narrow(ROW_AXIS, 0, rows).zero_()
        self.advance(rows)

    def fork(self) -> "TreeCache":
        """An independent copy of the committed rows."""
        twin = TreeCache(self.layout, whole=self.extent.whole)
        if self.pool is not None:
            self.pool.lend(twin)
        twin.reserve(self.length)
        if twin.held:
            twin.memory.copy_rows(self.memory, self.length)
        twin.advance(self.length)
        return twin


class ShapeProbe(Cache):
    """Records the shape of each layer's K/V in a first forward, and keeps none of it."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.seen: dict[int, tuple[Tensor, Tensor]] = {}

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        self.seen[layer_idx] = (key_states, value_states)
        return key_states, value_states

    def layout(self, windows: Sequence[int | None]) -> tuple[LayerShape, ...]:
        """One shape per layer. windows: sliding window of each layer, None for full attention."""
        shapes = []
        for index, window in enumerate(windows):
            if index in self.seen:
                k, v = self.seen[index]
                shape = (k.shape[1], k.shape[3], v.shape[3], k.dtype, k.device)
                shapes.append(LayerShape(*shape, window))
            else:
                shapes.append(LayerShape(0, 0, 0, torch.float32, torch.device("cpu"), window))
        return tuple(shapes)
