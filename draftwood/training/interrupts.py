"""Ctrl-C takes effect between steps, never within one."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold the first Ctrl-C back until the body is done; a second one takes effect at once.

    Does nothing outside the main thread, which alone receives signals, and where SIGINT is ignored.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    arrived = False

    def remember(number: int, frame: Any) -> None:
        nonlocal arrived
        if arrived:
            handler(number, frame)
        arrived = True

    signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if arrived:
        handler(signal.SIGINT, None)
