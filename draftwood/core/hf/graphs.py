"""A target's forwards at a few fixed sizes, captured once each.

A tree is padded to the next size. A padding node hangs from nothing: it sees the context and
itself, no node sees it, and its logits are cut off. Tokens, parents, depths, and how many rows are
committed are written into tensors that the captured kernels read.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Literal

import torch
from attrs import define, field
from torch import Tensor

from draftwood.core.errors import UnsupportedTarget
from draftwood.core.hf import attention
from draftwood.core.hf.cache import Buffers, TreeCache
from draftwood.core.kernels.graphs import BufferPool, Capturing, on_device
from draftwood.core.kernels.tree_mask import TreeMask
from draftwood.core.tree import TokenTree

if TYPE_CHECKING:
    from draftwood.core.hf.target import HFSession, HFTarget

Mode = Literal["auto", "on", "off"]
Scored = tuple[Tensor, list[Tensor]]

SIZES = (1, 5, 9, 13, 17, 25, 33, 49, 65, 97, 129, 193, 257, 385, 513)
"""Rows of a forward: the anchor and a number of draft nodes that budgets like."""


def padded(rows: int) -> int | None:
    """The size that a forward of `rows` is padded to; None if it is larger than all."""
    return next((size for size in SIZES if size >= rows), None)


def wanted(target: "HFTarget", mode: Mode) -> "Graphs | None":
    """What captures this target's forwards, None where nothing does.

    Raises UnsupportedTarget, for "on", where there is nothing to capture with.
    """
    reason = _missing(target)
    if mode == "on" and reason is not None:
        raise UnsupportedTarget(f"runtime.graphs is on, and {reason}; use auto or off")
    if mode == "off" or reason is not None:
        return None
    return Graphs(target, Capturing(partial(on_device, target.device), mode == "on"))


def _missing(target: "HFTarget") -> str | None:
    places = {shape.device for shape in target.layout if shape.heads}
    if target.device.type != "cuda":
        return f"graphs are captured on a GPU, while {target.name} is on {target.device.type}"
    if target.split or len(places) > 1:
        return f"{target.name} lies on several devices, which no graph spans"
    return None


@define(eq=False)
class Graphs:
    """Runs a target's forwards at fixed sizes."""

    target: "HFTarget"
    capturing: Capturing
    shelf: BufferPool[Buffers] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.shelf = BufferPool(partial(Buffers.of, self.target.layout))

    @property
    def off(self) -> str | None:
        """Why forwards are not captured any more; None while they are."""
        return self.capturing.off

    def score(self, session: "HFSession", tree: TokenTree) -> Scored | None:
        """As the target's own: (N+1, V) logits and tapped outputs (1, N+1, H), both copies. None
        if this forward is not captured.

        Raises UnsupportedTarget if it must be and cannot.
        """
        size = padded(len(tree))
        if size is None or self.off is not None:
            return None
        session.cache.reserve(size)
        (buffers,) = session.cache.held
        key = (size, session.taps.layers, type(session.kernels))
        forward = buffers.forwards.get(key)
        if forward is None:
            forward = Fixed(self.target, session, buffers, size)
            forward.fill(session.length, tree)
            forward.capture(self.capturing)
            if self.off is not None:
                return None
            buffers.forwards[key] = forward
        return forward.run(session.length, tree)


class Fixed:
    """A forward of `size` rows on one set of buffers."""

    def __init__(
        self, target: "HFTarget", session: "HFSession", buffers: Buffers, size: int
    ) -> None:
        assert session.kernels is not None
        self.target, self.kernels, self.taps = target, session.kernels, session.taps
        self.size, self.capacity = size, buffers.capacity
        # A cache of its own on the same memory: the session's may be gone before the buffers are.
        self.cache = TreeCache(target.layout, whole=True)
        self.cache.use(buffers)
        given = torch.zeros(3 * size + 1, dtype=torch.int64, device=target.device)
        self.context, *columns = given.split([1, size, size, size])
        self.tokens, self.parents, self.depths = columns
        self.offsets = torch.arange(size, device=target.device)
        self.windows = [shape.window for shape in target.layout]
        self.again: Callable[[], Scored] | None = None

    def fill(self, length: int, tree: TokenTree) -> None:
        """Write down what the kernels are to read. Waits for nothing."""
        rows = len(tree)
        self.context.fill_(length)
        for column, own, padding in (
            (self.tokens, tree.tokens, 0),
            (self.parents, tree.parents, -1),
            (self.depths, tree.depths, 0),
        ):
            column[:rows].copy_(own, non_blocking=True)
            column[rows:].fill_(padding)

    def capture(self, capturing: Capturing) -> None:
        what = f"the forward of {self.target.name}"
        self.again = capturing.captured(what, self.kernels, self._launch)

    def run(self, length: int, tree: TokenTree) -> Scored:
        """The forward of a tree behind `length` rows."""
        assert self.again is not None
        self.fill(length, tree)
        rows = len(tree)
        logits, parts = self.again()
        # The next replay writes to the same memory.
        return logits[:rows].clone(), [part[:, :rows].clone() for part in parts]

    def _launch(self) -> Scored:
        """Everything that is captured. Asks the device nothing."""
        there = self.context.to(torch.int32)[0]
        mask = TreeMask(there, self.capacity)
        if self.size > 1:
            words = self.kernels.ancestors(self.parents)
            mask = TreeMask(there, self.capacity, 0, self.depths, words)
        work = attention.TreeAttention(self.kernels, mask, self.windows)
        self.cache.extent.rows = self.context + self.offsets
        target = self.target
        with attention.running(target.config), self.taps.recording() as parts:
            logits = target._call(
                self.tokens,
                self.depths + self.context,
                self.cache,
                None,
                options={attention.KEYWORD: work},
            )
        work.check(target.layers, target.name)
        return logits, parts
