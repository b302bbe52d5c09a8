"""Calibration: what is timed, how well prices predict what was held out, and what is stored."""

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

from .machine import Costs, two_roofs


@pytest.fixture(autouse=True)
def own_store(tmp_path, monkeypatch):
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path))


def noisy(seed, share=0.3):
    """A machine on which some timings take half as long again, for no reason of theirs."""
    rng = random.Random(seed)

    def price(tokens, context):
        disturbed = 1.5 if rng.random() < share else 1.0
        return two_roofs(tokens, context) * disturbed * rng.uniform(1.0, 1.03)

    return Costs(price)


def test_points_held_out_are_not_fitted():
    assert not set(FITTED) & set(HELD_OUT)
    for axis in (0, 1):  # none lies beyond what was fitted
        assert max(point[axis] for point in HELD_OUT) <= max(point[axis] for point in FITTED)


def test_a_machine_of_two_roofs_is_predicted_where_it_was_not_fitted():
    quality = calibrate(Costs(), repeats=1).quality()
    assert quality["median"] < 0.03
    assert quality["largest"] < 0.15


@pytest.mark.parametrize("seed", range(3))
def test_disturbances_hardly_matter_because_points_are_timed_again(seed):
    assert calibrate(noisy(seed), repeats=5).quality()["median"] < 0.05
    # Negative control: once is not enough.
    assert calibrate(noisy(seed, 0.6), repeats=1).quality()["largest"] > 0.2


def test_quality_tells_when_the_model_is_wrong():
    """Negative control: two contexts that cost the same are no machine of this kind."""

    def odd(tokens, context):
        return two_roofs(tokens, context) * (3.0 if context in (256, 1024) else 1.0)

    assert calibrate(Costs(odd), repeats=1).quality()["median"] > 0.5


def test_every_point_is_timed_as_often_as_asked_in_another_order():
    costs = Costs()
    seen = []
    calibrate(costs, repeats=3, progress=lambda done, of: seen.append((done, of)))
    count = len(FITTED) + len(HELD_OUT)
    rounds = [costs.probes[i : i + count] for i in range(0, 3 * count, count)]
    assert all(sorted(each) == sorted((*FITTED, *HELD_OUT)) for each in rounds)
    assert rounds[0] != rounds[1] != rounds[2]
    assert seen == [(n, 3 * count) for n in range(3 * count)]


def test_what_the_target_cannot_hold_is_left_out():
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


def test_a_target_that_holds_nothing_cannot_be_calibrated():
    def nothing(tokens, context):
        raise RequestError("too long")

    with pytest.raises(DraftwoodError, match="too few tokens"):
        calibrate(Costs(nothing))


def test_controllers_read_what_was_stored():
    result = calibrate(Costs(), repeats=1)
    store.save(Costs().identity, result.model, [*result.fitted, *result.held_out])
    for controller in (Roofline(RooflineOptions()), Measured(MeasuredOptions())):
        costs = Costs()
        prices = controller.init(costs)
        assert (prices.source, len(costs.probes)) == ("store", 2)
        for probe in result.held_out:
            predicted = float(prices.forward(probe.tokens, probe.context))
            assert predicted == pytest.approx(probe.seconds, rel=0.15)


def test_what_could_not_be_stored_is_not_said_to_be(tmp_path, monkeypatch):
    result = calibrate(Costs(), repeats=1)
    assert store.save(Costs().identity, result.model, result.fitted)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path / "file"))
    assert not store.save(Costs().identity, result.model, result.fitted)


def test_operations_can_be_counted_in_another_way():
    counted = CountedCosts(Costs(), lambda tokens, context: 7.0 * tokens)
    assert counted.flops(3, 10) == 21.0
    assert counted.bytes(3, 10) == Costs().bytes(3, 10)
    assert counted.identity == Costs().identity
    assert calibrate(counted, repeats=1).roof.compute != calibrate(Costs(), repeats=1).roof.compute


def test_json_values_hold_every_point():
    result = calibrate(Costs(), repeats=1)
    points = result.as_dict()["points"]
    assert len(points) == len(FITTED) + len(HELD_OUT)
    assert sum(point["held_out"] for point in points) == len(HELD_OUT)
    probe = Probe(points[0]["tokens"], points[0]["context"], points[0]["seconds"])
    assert points[0]["predicted"] == result.predicted(probe)
