"""Buffers of keys and values that outlive their request, with what was captured on them."""

import weakref
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

ROWS = 2048
"""Capacities are multiples of this: work is captured anew on each new buffer."""

IDLE = 2
"""Most buffers that wait for a request."""


class PooledBuffer(Protocol):
    """Memory of one cache."""

    @property
    def capacity(self) -> int:
        """Rows."""
        ...

    @property
    def forwards(self) -> dict[Any, Any]:
        """What was captured on it; the pool sets each value's `replay` to None when it drops it."""
        ...


Memory = TypeVar("Memory", bound=PooledBuffer)


class PoolUser(Protocol[Memory]):
    """A cache.

    Attributes:
        pool: Where its memory comes from; None for the allocator.
        held: Its memory; empty before it reserved any.
    """

    pool: "BufferPool[Memory] | None"
    held: list[Memory]


class BufferPool(Generic[Memory]):
    """Memory of ended requests.

    Args:
        make: Capacity -> new memory.
    """

    def __init__(self, make: Callable[[int], Memory]) -> None:
        self._make = make
        self._idle: list[Memory] = []

    def take(self, capacity: int) -> Memory:
        """The smallest idle memory of at least this capacity, else new memory."""
        fitting = [memory for memory in self._idle if memory.capacity >= capacity]
        if not fitting:
            return self._make(-(-capacity // ROWS) * ROWS)
        smallest = min(fitting, key=lambda memory: memory.capacity)
        self._idle = [memory for memory in self._idle if memory is not smallest]
        return smallest

    def give(self, memory: Memory) -> None:
        """Return memory. The largest is kept, since it fits the most requests."""
        self._idle.append(memory)
        self._idle.sort(key=lambda idle: -idle.capacity)
        for dropped in self._idle[IDLE:]:
            for forward in dropped.forwards.values():
                forward.replay = None  # it holds the forward, which holds the memory
            dropped.forwards.clear()
        del self._idle[IDLE:]

    def lend(self, cache: PoolUser[Memory]) -> None:
        """Let `cache` take its memory from here; it comes back when the cache is freed."""
        cache.pool = self
        weakref.finalize(cache, _give_all, self, cache.held).atexit = False


def _give_all(pool: BufferPool[Memory], held: list[Memory]) -> None:
    for memory in held:
        pool.give(memory)
