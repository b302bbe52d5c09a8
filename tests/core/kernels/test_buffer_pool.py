"""Memory that was captured on, and what becomes of it when it is dropped."""

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from draftwood.core.kernels import buffer_pool
from draftwood.core.kernels.buffer_pool import ROWS, BufferPool


class Memory:
    """Of one cache."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.forwards: dict[Any, Any] = {}


class Forward:
    """Captured on `memory`: what does it again holds it, as a captured call does."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.replay: Callable[[], Any] | None = self.launch

    def launch(self) -> int:
        return self.memory.capacity


@pytest.fixture
def uncollected() -> Iterator[None]:
    """What is freed is freed at once, not when a collection comes: it is a device's memory."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def captured(capacity: int) -> Memory:
    memory = Memory(capacity)
    memory.forwards["forward"] = Forward(memory)
    return memory


def test_memory_that_no_request_waits_for_is_freed_at_once(uncollected: None) -> None:
    pool = BufferPool(Memory)
    largest = [captured(ROWS * size) for size in (3, 2)]
    watched = [weakref.ref(memory) for memory in largest]
    dropped = captured(ROWS)
    gone = [weakref.ref(dropped), weakref.ref(dropped.forwards["forward"])]
    for memory in (largest.pop(), dropped, largest.pop()):
        pool.give(memory)
        del memory
    del dropped
    assert [each() for each in gone] == [None, None]
    assert all(each() is not None for each in watched)
    # Those that stay can be replayed.
    for size in (2, 3):
        taken = pool.take(ROWS * size)
        assert taken.forwards["forward"].replay() == ROWS * size


def test_what_is_held_while_memory_is_dropped_may_not_be_replayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(buffer_pool, "IDLE", 0)
    memory = captured(ROWS)
    forward = memory.forwards["forward"]
    BufferPool(Memory).give(memory)
    assert forward.replay is None
    assert not memory.forwards
