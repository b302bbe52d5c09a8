"""The benchmark of predicted times: its clock, errors and count of rounds."""

import importlib.util
import itertools
from pathlib import Path

import pytest

from draftwood.plugins.controllers.roofline.cost_model import CostModel
from draftwood.plugins.controllers.roofline.measuring import Probe
from draftwood.plugins.controllers.roofline.roof import Roof

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "prediction.py"


@pytest.fixture(scope="module")
def prediction():
    if not SCRIPT.is_file():
        pytest.skip("benchmarks/ is part of a checkout, not of an installation")
    spec = importlib.util.spec_from_file_location("prediction", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def linear(start=0.01, step=0.001):
    line = (start, step, 0.0, 0.0, 0.0)
    return CostModel(Roof(line, line))


POINTS = [Probe(s, c, 0.01 + 0.001 * s) for s in (1, 8, 64) for c in (64, 2048)]


def test_a_dilated_clock_is_continuous_when_its_factor_changes(prediction):
    ticks = itertools.count()
    clock = prediction.Dilated(lambda: float(next(ticks)))
    assert clock() == 1.0
    clock.factor = 2.0  # reads the other clock once
    assert clock() == 2.0 + 2.0
    assert clock() == 2.0 + 4.0
    clock.factor = 1.0
    assert clock() == 8.0 + 1.0


def test_errors_are_relative_to_the_measured_time(prediction):
    assert prediction.error(linear(), POINTS) == pytest.approx(0.0)
    assert prediction.error(linear(), POINTS, 2.0) == pytest.approx(0.5)


def test_rounds_are_counted_until_the_error_recovers(prediction):
    class Scripted:
        costs = linear()

        def take(self, count):
            for number in range(1, count + 1):
                self.costs = linear(0.02, 0.002) if number >= 5 else linear()
                yield prediction.RoundForward(1.0, 1.0)

    clock = prediction.Dilated(lambda: 0.0)
    assert prediction.rounds_to_recover(Scripted(), clock, POINTS, 2.0, 30) == 5
    assert prediction.rounds_to_recover(Scripted(), clock, POINTS, 2.0, 3) is None
