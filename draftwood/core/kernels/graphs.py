"""Work of one size, captured once and replayed: CUDA graphs, for targets and drafters alike.

A replay launches again what was launched while it was captured, on the same memory. So what differs
between rounds is written into tensors that the captured kernels read, and keys and values lie in
buffers that outlive their request, for the next one to take over together with what was captured
on them.
"""

import logging
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import torch
from attrs import define

from draftwood.core.errors import UnsupportedTarget
from draftwood.core.kernels.launches import LAUNCHES

log = logging.getLogger("draftwood")

ROWS = 2048
"""Capacities are multiples of this: each new buffer is captured on anew."""

IDLE = 2
"""Buffers that wait for a request, at most."""

Result = TypeVar("Result")


class Capture(Protocol):
    """Of a call that launches work on fixed memory, something that does the same again and returns
    the same tensors. replayed: told of every replay whose launches nobody counted."""

    def __call__(
        self, launch: Callable[[], Result], replayed: Callable[[], None]
    ) -> Callable[[], Result]: ...


@define(eq=False)
class Capturing:
    """How somebody's work is captured.

    capture: by a graph, or in tests by what stands for one. must: whether it is an error if
    something cannot be captured; else it goes on uncaptured, and `off` says why.
    """

    capture: Capture
    must: bool = True
    off: str | None = None

    def captured(self, what: str, launch: Callable[[], Result]) -> Callable[[], Result] | None:
        """What does again what `launch` does; None from now on if that cannot be.

        what: names the work, for messages.
        Raises UnsupportedTarget if it must be captured and cannot.
        """
        launched: Counter[str] = Counter()

        def counted() -> Result:
            before = LAUNCHES.counts()
            result = launch()
            launched.clear()
            launched.update(LAUNCHES.counts() - before)
            return result

        try:
            return self.capture(counted, lambda: LAUNCHES.add_all(launched))
        except (RuntimeError, UnsupportedTarget) as error:
            self.refuse(f"{what} cannot be captured: {error}")
            return None

    def refuse(self, reason: str) -> None:
        """Nothing is captured from now on. Raises UnsupportedTarget if it must be."""
        if self.must:
            raise UnsupportedTarget(f"{reason}; use runtime.graphs: off")
        self.off = reason
        log.warning("%s; it runs uncaptured", reason)


def on_device(
    device: torch.device, launch: Callable[[], Result], replayed: Callable[[], None]
) -> Callable[[], Result]:
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

    def again() -> Result:
        nonlocal counted
        graph.replay()
        if counted:
            replayed()
        counted = True
        return result

    return again


class PooledBuffer(Protocol):
    """Memory of one cache. forwards: what was captured on it; each has an `again` to be replayed
    by, None once it may not be."""

    @property
    def capacity(self) -> int: ...

    @property
    def forwards(self) -> dict[Any, Any]: ...


Memory = TypeVar("Memory", bound=PooledBuffer)


class PoolUser(Protocol[Memory]):
    """A cache. held: its memory, none before it reserved any. pool: where that comes from, None
    for nowhere but the allocator."""

    pool: "BufferPool[Memory] | None"
    held: list[Memory]


class BufferPool(Generic[Memory]):
    """Memory of requests that have ended. make: new memory of a capacity."""

    def __init__(self, make: Callable[[int], Memory]) -> None:
        self._make = make
        self._idle: list[Memory] = []

    def take(self, capacity: int) -> Memory:
        """Memory of at least this capacity, for one cache alone."""
        fitting = [memory for memory in self._idle if memory.capacity >= capacity]
        if not fitting:
            return self._make(-(-capacity // ROWS) * ROWS)
        found = min(fitting, key=lambda memory: memory.capacity)
        self._idle = [memory for memory in self._idle if memory is not found]
        return found

    def give(self, memory: Memory) -> None:
        """Take it back. The largest stay: they fit the most requests."""
        self._idle.append(memory)
        self._idle.sort(key=lambda idle: -idle.capacity)
        for dropped in self._idle[IDLE:]:
            for forward in dropped.forwards.values():
                forward.again = None  # it holds the forward, and that the memory
            dropped.forwards.clear()
        del self._idle[IDLE:]

    def lend(self, cache: PoolUser[Memory]) -> None:
        """Let `cache` have its memory from here, and take that back when it is gone."""
        cache.pool = self
        weakref.finalize(cache, _returned, self, cache.held).atexit = False


def _returned(pool: BufferPool[Memory], held: list[Memory]) -> None:
    for memory in held:
        pool.give(memory)
