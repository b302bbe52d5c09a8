"""Splits a round's time by stage, on devices that work asynchronously too."""

from collections.abc import Callable
from typing import Protocol, Self

import torch
from attrs import frozen

from draftwood.core.values import Timings


class DeviceMark(Protocol):
    """A point in a device's queue of work."""

    def seconds_since(self, earlier: Self) -> float | None:
        """Seconds of device time between two marks; None until the device reaches this one."""
        ...


class CudaMark:
    """An event on the current stream. Costs a few microseconds and no synchronisation."""

    def __init__(self) -> None:
        self.event = torch.cuda.Event(enable_timing=True)
        self.event.record()

    def seconds_since(self, earlier: "CudaMark") -> float | None:
        if not self.event.query():
            return None
        return earlier.event.elapsed_time(self.event) / 1e3


def device_marks(device: torch.device) -> Callable[[], DeviceMark] | None:
    """How to mark this device's work; None where the host's clock measures it, as on a CPU."""
    return CudaMark if device.type == "cuda" else None


@frozen
class _Lap:
    stage: str | None
    host: float
    mark: DeviceMark | None


class Stopwatch:
    """Measures one round. Time that belongs to no stage is `other`.

    The verdict's copy to the host waits for all work before it, so marks up to `judge` are resolved
    without another wait. A lap whose mark is not reached is measured by the host's clock.

    Args:
        clock: Host seconds.
        marks: Makes a DeviceMark where a stage's work may outlast its call.
    """

    def __init__(
        self, clock: Callable[[], float], marks: Callable[[], DeviceMark] | None = None
    ) -> None:
        self._clock, self._marks = clock, marks
        self._laps = [self._now(None)]

    def lap(self, stage: str | None) -> None:
        """Count the time since the last lap as `stage`, or as `other` if it is None."""
        self._laps.append(self._now(stage))

    def timings(self) -> Timings:
        """Seconds by stage, from the start until now."""
        seconds: dict[str, float] = {}
        for before, after in zip(self._laps, self._laps[1:], strict=False):
            if after.stage is not None:
                spent = _between(before, after)
                seconds[after.stage] = seconds.get(after.stage, 0.0) + spent
        total = self._clock() - self._laps[0].host
        return Timings(**seconds, other=max(0.0, total - sum(seconds.values())))

    def _now(self, stage: str | None) -> _Lap:
        return _Lap(stage, self._clock(), self._marks() if self._marks else None)


def _between(before: _Lap, after: _Lap) -> float:
    if before.mark is not None and after.mark is not None:
        spent = after.mark.seconds_since(before.mark)
        if spent is not None:
            return spent
    return after.host - before.host
