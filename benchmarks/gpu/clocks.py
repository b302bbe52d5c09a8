"""Times of alternating contestants, on a device or, in a dry run, on the CPU."""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from attrs import asdict, frozen

COLD_BYTES = 512 * 2**20
"""Written before each timed call: more than any second-level cache holds, so that a call finds its
inputs in memory, and enough work for the host to queue the call meanwhile."""


@frozen
class Timed:
    """Seconds: median and quartiles. how: `graph` and `events` are the device's time, of a captured
    graph or of single launches; `host` is the caller's, until the device is done. error: why there
    is none."""

    seconds: float | None = None
    low: float | None = None
    high: float | None = None
    repeats: int = 0
    how: str = ""
    error: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def summary(seconds: list[float], how: str) -> Timed:
    """The times of one contestant's repeats."""
    if not seconds:
        return Timed(how=how, error="no time was left")
    if len(seconds) == 1:
        return Timed(seconds[0], seconds[0], seconds[0], 1, how)
    low, _, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return Timed(statistics.median(seconds), low, high, len(seconds), how)


class Clock:
    """Times calls on `device`. end: of this part, on time.monotonic's clock; at least one repeat
    is made in any case."""

    def __init__(self, device: torch.device, end: float) -> None:
        self.device, self.end = device, end
        self.on_gpu = device.type == "cuda"
        self._cold: torch.Tensor | None = None

    @property
    def left(self) -> float:
        """Seconds until the end."""
        return self.end - time.monotonic()

    def wait(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def device_times(
        self, contestants: Mapping[str, Callable[[], Any]], repeats: int, capture: bool = True
    ) -> dict[str, Timed]:
        """Device seconds of each contestant's call, with cold caches.

        A call is captured into a graph if it can be, so that what is timed is its work on the
        device and not how fast Python launches it. One that raises is left out with its error.
        """
        if not self.on_gpu:
            return self.host_times(contestants, repeats)
        found: dict[str, Timed] = {}
        ready: dict[str, tuple[Callable[[], Any], str]] = {}
        for name, call in contestants.items():
            try:
                self._warm(call)
                ready[name] = self._captured(call) if capture else (call, "events")
            except Exception as error:  # noqa: BLE001 - one contestant's failure is a result
                found[name] = Timed(error=f"{type(error).__name__}: {error}"[:300])
        marks: dict[str, list[tuple[Any, Any]]] = {name: [] for name in ready}
        for _ in range(repeats):
            for name, (call, how) in ready.items():
                marks[name].append(self._marked(call, how))
            self.wait()
            if self.left < 0:
                break
        for name, (_, how) in ready.items():
            took = [before.elapsed_time(after) / 1e3 for before, after in marks[name]]
            found[name] = summary(took, how)
        return {name: found[name] for name in contestants}

    def host_times(
        self, contestants: Mapping[str, Callable[[], Any]], repeats: int
    ) -> dict[str, Timed]:
        """Seconds from an idle device until each contestant's call has returned and all its work
        is done."""
        found: dict[str, Timed] = {}
        for name, call in contestants.items():
            try:
                self._warm(call)
            except Exception as error:  # noqa: BLE001 - one contestant's failure is a result
                found[name] = Timed(error=f"{type(error).__name__}: {error}"[:300])
        took: dict[str, list[float]] = {name: [] for name in contestants if name not in found}
        for _ in range(repeats):
            for name in took:
                self.wait()
                before = time.perf_counter()
                contestants[name]()
                self.wait()
                took[name].append(time.perf_counter() - before)
            if self.left < 0:
                break
        found |= {name: summary(seconds, "host") for name, seconds in took.items()}
        return {name: found[name] for name in contestants}

    def bandwidth(self) -> float:
        """bytes/s of a large copy, of which each byte is read and written."""
        source = self._cooler()
        into = torch.empty_like(source)
        timed = self.device_times({"copy": lambda: into.copy_(source)}, 10)["copy"]
        assert timed.seconds, timed.error
        return 2.0 * source.numel() / timed.seconds

    def matmul_rate(self, dtype: torch.dtype) -> float:
        """FLOP/s of a large square product."""
        size = 8192 if self.on_gpu else 64
        square = torch.randn(size, size, device=self.device).to(dtype)
        timed = self.device_times({"product": lambda: square @ square}, 10)["product"]
        assert timed.seconds, timed.error
        return 2.0 * size**3 / timed.seconds

    def _warm(self, call: Callable[[], Any]) -> None:
        for _ in range(3 if self.on_gpu else 1):
            call()
        self.wait()

    def _captured(self, call: Callable[[], Any]) -> tuple[Callable[[], Any], str]:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                call()
        except RuntimeError:  # it asks the host something, or allocates what a graph cannot
            self.wait()
            return call, "events"
        return graph.replay, "graph"

    def _marked(self, call: Callable[[], Any], how: str) -> tuple[Any, Any]:
        """Events before and after a call; the device is kept busy until it is queued."""
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._cooler().zero_()
        if how == "events":
            torch.cuda._sleep(2_000_000)  # cycles: about a millisecond
        before.record()
        call()
        after.record()
        return before, after

    def _cooler(self) -> torch.Tensor:
        if self._cold is None:
            size = COLD_BYTES if self.on_gpu else 2**16
            self._cold = torch.zeros(size, dtype=torch.uint8, device=self.device)
        return self._cold


def place(dry: bool) -> torch.device:
    """Where this run measures."""
    return torch.device("cpu" if dry else "cuda")
