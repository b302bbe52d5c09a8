"""Pooled memory: what is kept, and that dropped memory is freed with what was captured on it."""

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from draftwood.core.kernels import buffer_pool
from draftwood.core.kernels.buffer_pool import ROWS, BufferPool


class Memory:
    """Memory of one cache."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.forwards: dict[Any, Any] = {}


class Forward:
    """Captured on `memory`; its replay holds it, as a captured call does."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.replay: Callable[[], Any] | None = self.launch

    def launch(self) -> int:
        return self.memory.capacity


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Without garbage collection: a device's memory must be freed at once."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def captured(capacity: int) -> Memory:
    memory = Memory(capacity)
    memory.forwards["forward"] = Forward(memory)
    return memory


def test_the_two_largest_buffers_are_kept_and_others_freed_at_once(uncollected: None) -> None:
    pool = BufferPool(Memory)
    largest = [captured(ROWS * size) for size in (3, 2)]
    kept = [weakref.ref(memory) for memory in largest]
    dropped = captured(ROWS)
    gone = [weakref.ref(dropped), weakref.ref(dropped.forwards["forward"])]
    for memory in (largest.pop(), dropped, largest.pop()):
        pool.give(memory)
        del memory
    del dropped
    assert [reference() for reference in gone] == [None, None]
    assert all(reference() is not None for reference in kept)
    # Forwards on kept memory can be replayed.
    for size in (2, 3):
        taken = pool.take(ROWS * size)
        assert taken.forwards["forward"].replay() == ROWS * size


def test_a_forward_on_dropped_memory_cannot_be_replayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(buffer_pool, "IDLE", 0)
    memory = captured(ROWS)
    forward = memory.forwards["forward"]
    BufferPool(Memory).give(memory)
    assert forward.replay is None
    assert not memory.forwards
