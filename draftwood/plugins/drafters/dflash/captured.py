"""A drafter's work where it is captured: the forward pass of a block, and the commit of a round.

Both have one size, the block's, since a round commits no more tokens than a block has slots. The
context's length and the anchor are written into tensors that the captured work reads, and keys and
values lie in memory that outlives its request. Fewer tokens are padded to that size; their padding
is written behind the context, where the next block overwrites it before anything is read.
"""

from collections.abc import Callable
from functools import partial
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from draftwood.core.interfaces import Kernels
from draftwood.core.kernels.buffer_pool import BufferPool
from draftwood.core.kernels.capture import Capturing
from draftwood.core.kernels.tree_mask import WORD, TreeMask
from draftwood.core.kv_buffer import KVMemory
from draftwood.plugins.drafters.common.cache import ContextCache, allocate, layer_buffers
from draftwood.plugins.drafters.dflash.layers import DrafterLayer
from draftwood.plugins.drafters.dflash.model import DFlashModel

Input = TypeVar("Input")


class Captured:
    """The captured work of one drafter, for all its sessions.

    Args:
        block: (B, H) scaled embedding rows of a block; row 0, the anchor's, is replaced.
        embedding: (V, H) unscaled embedding rows.
    """

    def __init__(
        self,
        model: DFlashModel,
        block: Tensor,
        embedding: Tensor,
        kernels: Kernels,
        capturing: Capturing,
    ) -> None:
        self.model, self.block, self.embedding = model, block, embedding
        self.kernels, self.capturing = kernels, capturing
        self.size = model.config.block_size
        self.pool: BufferPool[KVMemory] = BufferPool(partial(allocate, model))
        # Kernels apply windows backwards only, so a window of both directions must hold the block.
        narrow = [layer.window for layer in model.stacked if not layer.causal and layer.window]
        if min(narrow, default=self.size) < self.size:
            capturing.refuse(
                f"a drafter's forward pass over blocks of {self.size} cannot be captured: a window "
                f"of {min(narrow)} hides parts of a block from each other"
            )

    def slots(self, cache: ContextCache, anchor: int) -> Tensor | None:
        """(B, d) final-normed states of the block behind the context; None if not captured."""
        slots = self._run(Block, cache, anchor)
        return None if slots is None else slots.clone()  # the next replay writes to the same memory

    def commit(self, cache: ContextCache, features: Tensor) -> bool:
        """Add rows for (n, taps * H) tapped states; False, with nothing done, if not captured."""
        rows = features.shape[0]
        if rows > self.size or self._run(Commit, cache, features) is None:
            return False
        cache.extend(rows)
        return True

    def _run(
        self, kind: "type[CapturedWork[Input]]", cache: ContextCache, value: Input
    ) -> Tensor | None:
        """Run this work on the cache's memory, captured at first use; None if it cannot be."""
        if self.capturing.off is not None:
            return None
        cache.reserve(self.size)
        memory = cache.memory
        work = memory.forwards.get(kind) or kind(self, memory)
        work.fill(cache.length, value)
        if work.replay is None:
            # After `fill`: work runs while it is captured, and must not overwrite the context.
            work.replay = self.capturing.captured(kind.name, work.launch)
            if work.replay is None:
                return None
            memory.forwards[kind] = work
        result: Tensor = work.replay()
        return result


class CapturedWork(Generic[Input]):
    """Work of one size on the memory of one cache.

    Attributes:
        name: For messages.
        replay: Repeats it; None before it was captured and once it may not be replayed.
    """

    name: ClassVar[str]

    def __init__(self, captured: Captured, memory: KVMemory) -> None:
        model = captured.model
        self.model, self.kernels = model, captured.kernels
        self.size, self.capacity = captured.size, memory.capacity
        self.buffers = layer_buffers(memory)
        model.rotary.reserve(self.capacity)
        # Captured work reads this table, which a larger one may replace in the model.
        self.table = model.rotary.table(model.device, model.dtype)
        self.context = torch.zeros(1, dtype=torch.int64, device=model.device)
        self.offsets = torch.arange(self.size, device=model.device)
        self.replay: Callable[[], Tensor] | None = None

    def fill(self, length: int, value: Input) -> None:
        """Write the inputs of work behind `length` rows, without synchronising."""
        raise NotImplementedError

    def launch(self) -> Tensor:
        """Everything that is captured; must not synchronise."""
        raise NotImplementedError


class Commit(CapturedWork[Tensor]):
    """Keys and values of up to B committed tokens, from (n, taps * H) tapped states."""

    name = "a drafter's commit"

    def __init__(self, captured: Captured, memory: KVMemory) -> None:
        super().__init__(captured, memory)
        self.features = self.context.new_zeros(
            (self.size, self.model.fc.in_features), dtype=self.model.dtype
        )

    def fill(self, length: int, value: Tensor) -> None:
        self.context.fill_(length)
        self.features[: value.shape[0]].copy_(value)

    def launch(self) -> Tensor:
        self.model.fixed_context(self.features, self.context + self.offsets, self.buffers)
        return self.context


class Block(CapturedWork[int]):
    """All layers over a block, (B, d) final-normed states, from the anchor."""

    name = "a drafter's forward pass"

    def __init__(self, captured: Captured, memory: KVMemory) -> None:
        super().__init__(captured, memory)
        self.masks, self.embedding = captured.block[1:], captured.embedding
        self.scale = self.model.config.input_embedding_scale
        self.anchor = torch.zeros_like(self.context)
        # Every slot attends to every slot; depths are their distances.
        ancestors = torch.full((self.size, -(-self.size // WORD)), -1, dtype=torch.int32)
        self.ancestors = ancestors.to(self.model.device)

    def fill(self, length: int, value: int) -> None:
        self.context.fill_(length)
        self.anchor.fill_(value)

    def launch(self) -> Tensor:
        length = self.context.to(torch.int32)[0]
        chain = TreeMask(length, self.capacity)
        block = TreeMask(length, self.capacity, 0, self.offsets, self.ancestors, causal=False)
        attend = [
            partial(self._attend, chain if layer.causal else block, layer)
            for layer in self.model.stacked
        ]
        first = self.embedding.index_select(0, self.anchor) * self.scale
        embeds = torch.cat((first, self.masks))
        rows = self.context + self.offsets
        return self.model.fixed_block(embeds, rows, self.buffers, attend)

    def _attend(
        self, mask: TreeMask, layer: DrafterLayer, query: Tensor, keys: Tensor, values: Tensor
    ) -> Tensor:
        scaling = query.shape[-1] ** -0.5
        return self.kernels.attend(query, keys, values, mask, scaling=scaling, window=layer.window)
