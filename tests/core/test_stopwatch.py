"""Stage times: by the host's clock on a CPU, by device marks on asynchronous devices."""

import pytest

from draftwood.core.stopwatch import Stopwatch
from draftwood.testing import ScriptedClock


def test_laps_count_for_their_stages_and_the_rest_as_other() -> None:
    watch = Stopwatch(ScriptedClock((1.0,)))
    watch.lap("draft")
    watch.lap(None)
    watch.lap("verify")
    watch.lap("draft")
    timings = watch.timings()
    assert (timings.draft, timings.verify, timings.other) == (2.0, 1.0, 2.0)
    assert timings.total == 5.0


class Device:
    """A device whose work takes four seconds per lap, and which has done `reached` laps."""

    def __init__(self, reached: int) -> None:
        self.marks, self.reached = 0, reached

    def mark(self) -> "Mark":
        self.marks += 1
        return Mark(self, self.marks - 1)


class Mark:
    def __init__(self, device: Device, index: int) -> None:
        self.device, self.index = device, index

    def seconds_since(self, earlier: "Mark") -> float | None:
        if self.index > self.device.reached:
            return None
        return 4.0 * (self.index - earlier.index)


@pytest.mark.parametrize(
    ("reached", "expected"), [(3, (4.0, 4.0)), (1, (4.0, 0.5)), (0, (0.5, 0.5))]
)
def test_a_stage_is_timed_by_the_device_once_its_mark_is_reached(
    reached: int, expected: tuple[float, float]
) -> None:
    watch = Stopwatch(ScriptedClock((0.5,)), Device(reached).mark)
    watch.lap("draft")
    watch.lap("verify")
    timings = watch.timings()
    assert (timings.draft, timings.verify) == expected
