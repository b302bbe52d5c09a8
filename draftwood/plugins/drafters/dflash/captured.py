"""A drafter's passes where they are captured: the block, and the committed tokens before it.

Both have one size, the block's: a round commits no more tokens than a block has slots. The
context's length and the anchor are written into tensors that the captured work reads, and keys and
values lie in buffers that outlive their request. Fewer tokens are filled up to that size; what that
writes lies behind the context, where the next block is written before anything is read.
"""

from collections.abc import Callable
from functools import partial
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from draftwood.core.interfaces import Kernels
from draftwood.core.kernels.graphs import BufferPool, Capturing
from draftwood.core.kernels.tree_mask import WORD, TreeMask
from draftwood.core.kv_buffer import KVMemory
from draftwood.plugins.drafters.common.cache import ContextCache, allocate, layer_buffers
from draftwood.plugins.drafters.dflash.layers import DrafterLayer
from draftwood.plugins.drafters.dflash.model import DFlashModel

Given = TypeVar("Given")


class Captured:
    """What is captured of one drafter, for all its sessions.

    block: (B, H) scaled embedding rows of a block, the anchor's replaced. embedding: (V, H) rows
    that are the anchor's, unscaled.
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
        # Kernels measure a window backwards alone: one that looks both ways must hold the block.
        narrow = [layer.window for layer in model.stacked if not layer.causal and layer.window]
        if min(narrow, default=self.size) < self.size:
            capturing.refuse(
                f"a drafter's pass over blocks of {self.size} cannot be captured: a window of "
                f"{min(narrow)} hides parts of a block from each other"
            )

    def slots(self, cache: ContextCache, anchor: int) -> Tensor | None:
        """(B, d) final-normed states of the block behind the context; None if not captured."""
        slots = self._run(Block, cache, anchor)
        return None if slots is None else slots.clone()  # the next replay writes to the same memory

    def commit(self, cache: ContextCache, features: Tensor) -> bool:
        """Hold what follows from (n, taps * H) tapped states too; False, with nothing done, if that
        is not captured."""
        rows = features.shape[0]
        if rows > self.size or self._run(Commit, cache, features) is None:
            return False
        cache.extend(rows)
        return True

    def _run(self, kind: "type[Pass[Given]]", cache: ContextCache, given: Given) -> Tensor | None:
        """A pass on the cache's memory, captured when it is first wanted; None if it cannot be."""
        if self.capturing.off is not None:
            return None
        cache.reserve(self.size)
        memory = cache.memory
        found = memory.forwards.get(kind) or kind(self, memory)
        found.fill(cache.length, given)
        if found.again is None:
            # Filled before: it runs while it is captured, and must not write over the context.
            found.again = self.capturing.captured(kind.name, self.kernels, found.launch)
            if found.again is None:
                return None
            memory.forwards[kind] = found
        result: Tensor = found.again()
        return result


class Pass(Generic[Given]):
    """Work of one size on one cache's memory. name: for messages. again: does it again; None before
    it was captured and once it may not be."""

    name: ClassVar[str]

    def __init__(self, captured: Captured, memory: KVMemory) -> None:
        model = captured.model
        self.model, self.kernels = model, captured.kernels
        self.size, self.capacity = captured.size, memory.capacity
        self.buffers = layer_buffers(memory)
        model.rotary.reserve(self.capacity)
        # Kept: it may give way to a larger one, and what was captured reads this one.
        self.table = model.rotary.table(model.device, model.dtype)
        self.context = torch.zeros(1, dtype=torch.int64, device=model.device)
        self.offsets = torch.arange(self.size, device=model.device)
        self.again: Callable[[], Tensor] | None = None

    def fill(self, length: int, given: Given) -> None:
        """Write down what the work is to read, behind `length` rows. Waits for nothing."""
        raise NotImplementedError

    def launch(self) -> Tensor:
        """Everything that is captured. Asks the device nothing."""
        raise NotImplementedError


class Commit(Pass[Tensor]):
    """The context's keys and values of up to B more tokens. given: (n, taps * H) tapped states."""

    name = "a drafter's commit"

    def __init__(self, captured: Captured, memory: KVMemory) -> None:
        super().__init__(captured, memory)
        self.features = self.context.new_zeros(
            (self.size, self.model.fc.in_features), dtype=self.model.dtype
        )

    def fill(self, length: int, given: Tensor) -> None:
        self.context.fill_(length)
        self.features[: given.shape[0]].copy_(given)

    def launch(self) -> Tensor:
        self.model.fixed_context(self.features, self.context + self.offsets, self.buffers)
        return self.context


class Block(Pass[int]):
    """All layers over a block: (B, d) final-normed states. given: the anchor."""

    name = "a drafter's pass"

    def __init__(self, captured: Captured, memory: KVMemory) -> None:
        super().__init__(captured, memory)
        self.masks, self.embedding = captured.block[1:], captured.embedding
        self.scale = self.model.config.input_embedding_scale
        self.anchor = torch.zeros_like(self.context)
        # Every slot sees every slot; depths say how far apart they are.
        every = torch.full((self.size, -(-self.size // WORD)), -1, dtype=torch.int32)
        self.every = every.to(self.model.device)

    def fill(self, length: int, given: int) -> None:
        self.context.fill_(length)
        self.anchor.fill_(given)

    def launch(self) -> Tensor:
        there = self.context.to(torch.int32)[0]
        chain = TreeMask(there, self.capacity)
        block = TreeMask(there, self.capacity, 0, self.offsets, self.every, causal=False)
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
