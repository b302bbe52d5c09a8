"""Calibration: which points are timed, the error at held-out points, and what is stored."""

import random

import pytest

from draftwood.core.errors import DraftwoodError, RequestError
from draftwood.plugins.controllers.measured import Measured
from draftwood.plugins.controllers.options import MeasuredOptions, RooflineOptions
from draftwood.plugins.controllers.roofline import Roofline, store
from draftwood.plugins.controllers.roofline.calibration import (
    FITTED,
    HELD_OUT,
    CountedCosts,
    calibrate,
)
from draftwood.plugins.controllers.roofline.measuring import Probe

from ..machine import Costs, two_roofs


@pytest.fixture(autouse=True)
def empty_store(tmp_path, monkeypatch):
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path))


def noisy(seed, share=0.3):
    """A machine on which a share of timings takes 1.5 times as long, at random."""
    rng = random.Random(seed)

    def price(tokens, context):
        disturbed = 1.5 if rng.random() < share else 1.0
        return two_roofs(tokens, context) * disturbed * rng.uniform(1.0, 1.03)

    return Costs(price)


def test_held_out_points_are_not_fitted_and_lie_inside_the_fitted_range():
    assert not set(FITTED) & set(HELD_OUT)
    for axis in (0, 1):  # held-out points need no extrapolation
        assert max(point[axis] for point in HELD_OUT) <= max(point[axis] for point in FITTED)


def test_two_roofs_are_predicted_within_3_percent_at_held_out_points():
    quality = calibrate(Costs(), repeats=1).quality()
    assert quality["median"] < 0.03
    assert quality["largest"] < 0.15


@pytest.mark.parametrize("seed", range(3))
def test_repeated_timings_remove_disturbances(seed):
    assert calibrate(noisy(seed), repeats=5).quality()["median"] < 0.05
    # Negative control: one timing per point is not enough.
    assert calibrate(noisy(seed, 0.6), repeats=1).quality()["largest"] > 0.2


def test_quality_reports_a_machine_unlike_the_model():
    """Two held-out contexts cost three times as much as the model can predict."""

    def odd(tokens, context):
        return two_roofs(tokens, context) * (3.0 if context in (256, 1024) else 1.0)

    assert calibrate(Costs(odd), repeats=1).quality()["median"] > 0.5


def test_every_repeat_times_all_points_in_another_order():
    costs = Costs()
    seen = []
    calibrate(costs, repeats=3, progress=lambda done, of: seen.append((done, of)))
    count = len(FITTED) + len(HELD_OUT)
    rounds = [costs.probes[i : i + count] for i in range(0, 3 * count, count)]
    assert all(sorted(each) == sorted((*FITTED, *HELD_OUT)) for each in rounds)
    assert rounds[0] != rounds[1] != rounds[2]
    assert seen == [(n, 3 * count) for n in range(3 * count)]


def test_points_beyond_the_targets_limit_are_left_out():
    def short(tokens, context):
        if context + tokens > 600:
            raise RequestError("too long")
        return two_roofs(tokens, context)

    costs = Costs(short)
    result = calibrate(costs, repeats=2)
    assert {probe.context for probe in result.fitted} == {64, 512}
    assert {probe.context for probe in result.held_out} == {256}
    assert (1, 2048) in costs.probes
    assert costs.probes.count((1, 2048)) == 1


def test_calibration_without_any_point_is_refused():
    def nothing(tokens, context):
        raise RequestError("too long")

    with pytest.raises(DraftwoodError, match="too few tokens"):
        calibrate(Costs(nothing))


def test_controllers_load_a_stored_calibration():
    result = calibrate(Costs(), repeats=1)
    store.save(Costs().identity, result.model, [*result.fitted, *result.held_out])
    for controller in (Roofline(RooflineOptions()), Measured(MeasuredOptions())):
        costs = Costs()
        model = controller.init(costs)
        assert (model.source, len(costs.probes)) == ("store", 2)
        for probe in result.held_out:
            predicted = float(model.forward(probe.tokens, probe.context))
            assert predicted == pytest.approx(probe.seconds, rel=0.15)


def test_save_returns_false_if_the_file_cannot_be_written(tmp_path, monkeypatch):
    result = calibrate(Costs(), repeats=1)
    assert store.save(Costs().identity, result.model, result.fitted)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path / "file"))
    assert not store.save(Costs().identity, result.model, result.fitted)


def test_counted_costs_replace_the_operation_count_only():
    counted = CountedCosts(Costs(), lambda tokens, context: 7.0 * tokens)
    assert counted.flops(3, 10) == 21.0
    assert counted.bytes(3, 10) == Costs().bytes(3, 10)
    assert counted.identity == Costs().identity
    assert calibrate(counted, repeats=1).roof.compute != calibrate(Costs(), repeats=1).roof.compute


def test_as_dict_contains_every_point():
    result = calibrate(Costs(), repeats=1)
    points = result.as_dict()["points"]
    assert len(points) == len(FITTED) + len(HELD_OUT)
    assert sum(point["held_out"] for point in points) == len(HELD_OUT)
    probe = Probe(points[0]["tokens"], points[0]["context"], points[0]["seconds"])
    assert points[0]["predicted"] == result.predicted(probe)
