"""Capture of work of one size, for targets and drafters: CUDA graphs.

A replay launches what was launched during the capture, on the same memory. So values that differ
between rounds are written into tensors that the captured kernels read, and keys and values lie in
buffers that outlive their request (`buffer_pool`).
"""

import logging
from collections import Counter
from collections.abc import Callable
from typing import Protocol, TypeVar

import torch
from attrs import define

from draftwood.core.errors import UnsupportedTarget
from draftwood.core.kernels.launches import LAUNCHES

log = logging.getLogger("draftwood")

Result = TypeVar("Result")


class Capture(Protocol):
    """Turns a call that launches work on fixed memory into one that repeats the work."""

    def __call__(
        self, launch: Callable[[], Result], replayed: Callable[[], None]
    ) -> Callable[[], Result]:
        """Returns a call that repeats `launch` and returns the same tensors.

        Args:
            launch: The work.
            replayed: Called after each replay whose launches were not counted.
        """
        ...


@define(eq=False)
class Capturing:
    """How the work of one model is captured.

    Attributes:
        capture: A CUDA graph (`on_device`), or its substitute in tests.
        must: Whether it is an error if something cannot be captured; else it runs uncaptured.
        off: Why nothing is captured any more; None while work is captured.
    """

    capture: Capture
    must: bool = True
    off: str | None = None

    def captured(self, what: str, launch: Callable[[], Result]) -> Callable[[], Result] | None:
        """A call that repeats `launch`; None if it cannot be captured, nor anything later.

        Args:
            what: Names the work, for messages.
            launch: The work. Its launches are counted with each replay.

        Raises:
            UnsupportedTarget: It cannot be captured and must be.
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
        """Capture nothing from now on.

        Raises:
            UnsupportedTarget: Work must be captured.
        """
        if self.must:
            raise UnsupportedTarget(f"{reason}; use runtime.graphs: off")
        self.off = reason
        log.warning("%s; it runs uncaptured", reason)


def on_device(
    device: torch.device, launch: Callable[[], Result], replayed: Callable[[], None]
) -> Callable[[], Result]:
    """`Capture` by a CUDA graph, for one device.

    The work runs twice before, on another stream: the first launch of a kernel compiles it, and
    libraries allocate their workspaces.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device):
        current, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            for _ in range(2):
                launch()
        current.wait_stream(side)
        with torch.cuda.graph(graph):
            result = launch()
    counted = False  # the capture counted launches and ran none: they are the first replay's

    def replay() -> Result:
        nonlocal counted
        graph.replay()
        if counted:
            replayed()
        counted = True
        return result

    return replay
