"""Forwards that are padded to a few sizes."""

import numpy as np
import pytest
from attrs import evolve

from draftwood.core.values import Timings
from draftwood.plugins.controllers.measured import Measured
from draftwood.plugins.controllers.options import MeasuredOptions, RooflineOptions
from draftwood.plugins.controllers.roofline.controller import Roofline
from draftwood.plugins.controllers.roofline.corrections import KNOTS, Corrections
from draftwood.plugins.controllers.roofline.cost_model import CostModel
from draftwood.plugins.controllers.roofline.roof import Roof

from ..machine import Costs

SIZES = (1, 5, 9, 17)
LINE = (0.01, 0.001, 0.0, 1e-6, 0.0)
SMOOTH = CostModel(Roof(LINE, LINE), Corrections(tuple(0.01 * knot for knot in range(len(KNOTS)))))
PADDED = evolve(SMOOTH, sizes=SIZES)


@pytest.mark.parametrize("count", [20, 300])
def test_a_size_costs_as_much_as_the_size_it_is_padded_to(count):
    run_at = [next((size for size in SIZES if size >= n), n) for n in range(1, count + 1)]
    expected = SMOOTH.forward(np.array(run_at, dtype=float), 64)
    np.testing.assert_allclose(PADDED.forwards(count, 100)[:count], expected)
    assert float(PADDED.forward(3, 100)) == float(SMOOTH.forward(5, 100))
    assert len(set(PADDED.forwards(17, 100)[:17])) == len(SIZES)


def test_corrections_are_learnt_at_the_padded_size():
    timings = Timings(verify=2.0 * float(PADDED.forward(3, 64)))
    learnt = PADDED.learn(timings, 2, 64, True, True)
    assert learnt.corrections.ratios == pytest.approx(np.array([(np.log(2.0), 5)]))
    assert learnt.sizes == SIZES


@pytest.mark.parametrize(
    "controller",
    [
        lambda: Roofline(RooflineOptions(refresh=True)),
        lambda: Roofline(RooflineOptions(clock="nominal")),
        lambda: Measured(MeasuredOptions(refresh=True)),
    ],
)
def test_controllers_read_padded_sizes_from_the_costs(controller):
    costs = Costs(sizes=SIZES)
    model = controller().init(costs)
    assert model.sizes == SIZES
    assert {tokens for tokens, _ in costs.probes} <= {*SIZES, 16}
    assert float(model.forward(6, 64)) == float(model.forward(9, 64))
    assert controller().init(Costs()).sizes == ()
