"""Forwards of a few fixed sizes, captured once and replayed: CUDA graphs.

A replay launches again what was launched while it was captured, on the same memory. So a tree is
padded to the next of a few sizes; what differs between rounds (tokens, parents, depths, and how
many rows are committed) is written into tensors that the captured kernels read; and keys and values
lie in buffers that outlive their request, for the next one to take over together with what was
captured on them. A padding node hangs from nothing: it sees the context and itself, no node sees
it, and its logits are cut off.
"""

import logging
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

import torch
from attrs import define, field
from torch import Tensor

from draftwood.core.errors import UnsupportedTarget
from draftwood.core.hf import attention
from draftwood.core.hf.cache import Buffers, LayerShape, TreeCache
from draftwood.core.tree_mask import TreeMask
from draftwood.core.values import TokenTree

if TYPE_CHECKING:
    from draftwood.core.hf.target import HFSession, HFTarget

log = logging.getLogger("draftwood")

Mode = Literal["auto", "on", "off"]
Scored = tuple[Tensor, list[Tensor]]
Capture = Callable[[Callable[[], Scored], Callable[[], None]], Callable[[], Scored]]
"""Of a call that launches work on fixed memory, something that does the same again. The second
argument is told of every replay whose launches nobody counted."""

SIZES = (1, 5, 9, 13, 17, 25, 33, 49, 65, 97, 129, 193, 257, 385, 513)
"""Rows of a forward: the anchor and a number of draft nodes that budgets like."""

ROWS = 2048
"""Capacities are multiples of this: each new buffer is captured on anew."""

IDLE = 2
"""Buffers that wait for a request, at most."""


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
    return Graphs(target, partial(captured, target.device), mode == "on")


def _missing(target: "HFTarget") -> str | None:
    places = {shape.device for shape in target.layout if shape.heads}
    if target.device.type != "cuda":
        return f"graphs are captured on a GPU, while {target.name} is on {target.device.type}"
    if target.split or len(places) > 1:
        return f"{target.name} lies on several devices, which no graph spans"
    return None


class Shelf:
    """Buffers of requests that have ended, all of one target's layout."""

    def __init__(self) -> None:
        self._idle: list[Buffers] = []

    def take(self, layout: Sequence[LayerShape], capacity: int) -> Buffers:
        """Buffers of at least this capacity, for one cache alone."""
        fitting = [buffers for buffers in self._idle if buffers.capacity >= capacity]
        if not fitting:
            return Buffers.of(layout, -(-capacity // ROWS) * ROWS)
        found = min(fitting, key=lambda buffers: buffers.capacity)
        self._idle = [buffers for buffers in self._idle if buffers is not found]
        return found

    def give(self, buffers: Buffers) -> None:
        """Take them back. The largest stay: they fit the most requests."""
        self._idle.append(buffers)
        self._idle.sort(key=lambda idle: -idle.capacity)
        for dropped in self._idle[IDLE:]:
            for forward in dropped.forwards.values():
                forward.again = None  # it holds the forward, and that the memory
            dropped.forwards.clear()
        del self._idle[IDLE:]

    def lend(self, cache: TreeCache) -> None:
        """Let `cache` have its buffers from here, and take them back when it is gone."""
        cache.shelf = self
        weakref.finalize(cache, _returned, self, cache.held).atexit = False


def _returned(shelf: Shelf, held: list[Buffers]) -> None:
    for buffers in held:
        shelf.give(buffers)


@define(eq=False)
class Graphs:
    """Runs a target's forwards at fixed sizes.

    capture: by a graph, or in tests by what stands for one. must: whether it is an error if a
    forward cannot be captured; else they go on uncaptured, and `off` says why.
    """

    target: "HFTarget"
    capture: Capture
    must: bool = True
    off: str | None = None
    shelf: Shelf = field(factory=Shelf)

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
            try:
                forward.capture(self.capture)
            except (RuntimeError, UnsupportedTarget) as error:
                self._give_up(error)
                return None
            buffers.forwards[key] = forward
        return forward.run(session.length, tree)

    def _give_up(self, error: Exception) -> None:
        reason = f"forwards of {self.target.name} cannot be captured: {error}"
        if self.must:
            raise UnsupportedTarget(f"{reason}; use runtime.graphs: off") from error
        self.off = reason
        log.warning("%s; they run uncaptured", reason)


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
        self.launched: Counter[str] = Counter()
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

    def capture(self, capture: Capture) -> None:
        self.again = capture(self._launch, self._replayed)

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
        before = Counter(self.kernels.launches())
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
        self.launched = Counter(self.kernels.launches()) - before
        return logits, parts

    def _replayed(self) -> None:
        self.kernels.replayed(self.launched)


def captured(
    device: torch.device, launch: Callable[[], Scored], replayed: Callable[[], None]
) -> Callable[[], Scored]:
    """`Capture` by a CUDA graph, for one device.

    What is launched for the first time is compiled, and libraries allocate their workspaces, so
    it runs twice before, beside the stream that the caller works on.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device):
        here, beside = torch.cuda.current_stream(), torch.cuda.Stream()
        beside.wait_stream(here)
        with torch.cuda.stream(beside):
            for _ in range(2):
                launch()
        here.wait_stream(beside)
        with torch.cuda.graph(graph):
            result = launch()
    counted = False  # the launches of the capture, which ran nothing, stand for the first replay's

    def again() -> Scored:
        nonlocal counted
        graph.replay()
        if counted:
            replayed()
        counted = True
        return result

    return again
