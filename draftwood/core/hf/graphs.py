"""A target's forwards at a few fixed sizes, captured once each.

A tree is padded to the next size. A padding node has no parent: it attends to the context and
itself, no node attends to it, and its logits are cut off. Tokens, parents, depths, and the number
of committed rows are written into tensors that the captured kernels read.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from attrs import define, field

from draftwood.core.errors import UnsupportedTarget
from draftwood.core.hf import attention
from draftwood.core.hf.cache import TreeCache
from draftwood.core.hf.scorer import Scored, TreeScorer
from draftwood.core.hf.taps import Taps
from draftwood.core.kernels.buffer_pool import BufferPool
from draftwood.core.kernels.capture import Capturing, on_device
from draftwood.core.kernels.protocol import Kernels
from draftwood.core.kernels.tree_mask import TreeMask
from draftwood.core.kv_buffer import KVMemory
from draftwood.core.tree import TokenTree

Mode = Literal["auto", "on", "off"]

SIZES = (1, 5, 9, 13, 17, 25, 33, 49, 65, 97, 129, 193, 257, 385, 513)
"""Rows of a forward: the anchor and a number of draft nodes that budgets often take."""


def padded(rows: int) -> int | None:
    """The size that a forward of `rows` is padded to; None if it is larger than all."""
    return next((size for size in SIZES if size >= rows), None)


def choose_graphs(scorer: TreeScorer, mode: Mode) -> "Graphs | None":
    """What captures this model's forwards, None where nothing does.

    Raises:
        UnsupportedTarget: mode is "on" and nothing can be captured here.
    """
    reason = _cannot_capture(scorer)
    if mode == "on" and reason is not None:
        raise UnsupportedTarget(f"runtime.graphs is on, and {reason}; use auto or off")
    if mode == "off" or reason is not None:
        return None
    return Graphs(scorer, Capturing(partial(on_device, scorer.device), mode == "on"))


def _cannot_capture(scorer: TreeScorer) -> str | None:
    devices = {shape.device for shape in scorer.layout if shape.heads}
    if scorer.device.type != "cuda":
        return f"graphs are captured on a GPU, while {scorer.name} is on {scorer.device.type}"
    if scorer.split or len(devices) > 1:
        return f"{scorer.name} lies on several devices, which no graph spans"
    return None


@define(eq=False)
class Graphs:
    """Replays a model's forwards at fixed sizes.

    Attributes:
        pool: buffers of ended requests, with what was captured on them.
    """

    scorer: TreeScorer
    capturing: Capturing
    pool: BufferPool[KVMemory] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.pool = BufferPool(partial(KVMemory.allocate, self.scorer.layout))

    @property
    def off(self) -> str | None:
        """Why forwards are no longer captured; None while they are."""
        return self.capturing.off

    def score(
        self, cache: TreeCache, taps: Taps, kernels: Kernels, tree: TokenTree
    ) -> Scored | None:
        """As `TreeScorer.score` for a whole tree, both results copies.

        Returns:
            None if this forward is not captured.

        Raises:
            UnsupportedTarget: it must be captured and cannot be.
        """
        size = padded(len(tree))
        if size is None or self.off is not None:
            return None
        cache.reserve(size)
        (buffers,) = cache.held
        key = (size, taps.layers, type(kernels))
        forward = buffers.forwards.get(key)
        if forward is None:
            forward = FixedForward(self.scorer, taps, kernels, buffers, size)
            forward.fill(cache.length, tree)
            forward.capture(self.capturing)
            if self.off is not None:
                return None
            buffers.forwards[key] = forward
        return forward.run(cache.length, tree)


class FixedForward:
    """A forward of `size` rows on one set of buffers."""

    def __init__(
        self, scorer: TreeScorer, taps: Taps, kernels: Kernels, buffers: KVMemory, size: int
    ) -> None:
        self.scorer, self.taps, self.kernels = scorer, taps, kernels
        self.size, self.capacity = size, buffers.capacity
        # A cache of its own on the same memory: the request's may be gone before the buffers are.
        self.cache = TreeCache(scorer.layout, whole=True)
        self.cache.use(buffers)
        inputs = torch.zeros(3 * size + 1, dtype=torch.int64, device=scorer.device)
        self.context, *columns = inputs.split([1, size, size, size])
        self.tokens, self.parents, self.depths = columns
        self.offsets = torch.arange(size, device=scorer.device)
        self.replay: Callable[[], Scored] | None = None

    def fill(self, length: int, tree: TokenTree) -> None:
        """Write what the captured kernels read, without a synchronisation."""
        rows = len(tree)
        self.context.fill_(length)
        for column, values, padding in (
            (self.tokens, tree.tokens, 0),
            (self.parents, tree.parents, -1),
            (self.depths, tree.depths, 0),
        ):
            column[:rows].copy_(values, non_blocking=True)
            column[rows:].fill_(padding)

    def capture(self, capturing: Capturing) -> None:
        """Capture the forward, if that can be done."""
        what = f"the forward of {self.scorer.name}"
        self.replay = capturing.captured(what, self._launch)

    def run(self, length: int, tree: TokenTree) -> Scored:
        """The forward of a tree behind `length` rows."""
        assert self.replay is not None
        self.fill(length, tree)
        rows = len(tree)
        logits, parts = self.replay()
        # The next replay writes to the same memory.
        return logits[:rows].clone(), [part[:, :rows].clone() for part in parts]

    def _launch(self) -> Scored:
        """Everything that is captured. Nothing in it synchronises."""
        context = self.context.to(torch.int32)[0]
        mask = TreeMask(context, self.capacity)
        if self.size > 1:
            words = self.kernels.ancestors(self.parents)
            mask = TreeMask(context, self.capacity, 0, self.depths, words)
        work = attention.TreeAttention(self.kernels, mask, self.scorer.windows)
        self.cache.extent.rows = self.context + self.offsets
        with self.taps.recording() as parts:
            positions = self.depths + self.context
            logits = self.scorer.call_with(work, self.tokens, positions, self.cache)
        return logits, parts
