"""The measured controller: roofline's decisions on a table, and forecasts of both."""

import itertools
import random
import statistics

import numpy as np
import pytest

from draftwood.core.errors import DraftwoodError
from draftwood.core.interfaces import ControllerState
from draftwood.plugins.controllers.fixed import Fixed
from draftwood.plugins.controllers.measured import Measured
from draftwood.plugins.controllers.options import FixedOptions, MeasuredOptions, RooflineOptions
from draftwood.plugins.controllers.roofline import Roofline
from draftwood.plugins.controllers.roofline.cost_model import CostModel
from draftwood.plugins.controllers.roofline.forward_table import ForwardTable
from draftwood.plugins.controllers.roofline.measuring import CONTEXTS, SIZES, Probe

from .machine import Costs, Simulation, speed, tree_of, two_roofs


@pytest.fixture(autouse=True)
def empty_store(tmp_path, monkeypatch):
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path))


def still():
    """A clock on which measuring takes no time."""
    return 0.0


def measured(**options):
    return Measured(MeasuredOptions(**options), clock=still)


def simulation(price=two_roofs, **truth):
    controller = measured()
    return Simulation(controller, controller.init(Costs(price)), price, **truth)


def stairs(tokens, context):
    return 0.004 + 0.002 * -(-tokens // 16)


def test_a_table_interpolates_linearly_between_measured_times():
    table = ForwardTable.of(
        [Probe(1, 64, 1.0), Probe(8, 64, 8.0), Probe(4, 64, 2.0), Probe(1, 128, 3.0)]
    )
    assert [table.seconds(s, 64) for s in (1, 4, 8)] == [1.0, 2.0, 8.0]
    assert table.seconds(2, 64) == pytest.approx(4 / 3)
    assert table.seconds(10, 64) == pytest.approx(11.0)  # extrapolated with the last slope
    assert table.seconds(1, 96) == pytest.approx(2.0)
    assert table.seconds(1, 10) == 1.0
    assert table.seconds(1, 4096) == 3.0
    sizes = np.arange(1.0, 20.0)
    assert np.allclose(table.seconds(sizes, 96), [table.seconds(s, 96) for s in range(1, 20)])


def test_a_table_is_constant_beyond_a_falling_end():
    table = ForwardTable.of([Probe(1, 64, 2.0), Probe(8, 64, 1.0)])
    assert table.seconds(100, 64) == 1.0


def test_an_empty_table_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        ForwardTable.of([])


def test_states_can_be_compared_and_hashed():
    a, b = (measured().init(Costs()) for _ in range(2))
    assert (a, hash(a)) == (b, hash(b))


@pytest.mark.parametrize("price", [two_roofs, lambda s, c: 0.010 + 0.002 * s])
@pytest.mark.parametrize("nodes", [5, 40, 200])
def test_the_budget_has_97_percent_of_the_best_true_speed(price, nodes):
    run = simulation(price)
    run.run(30)
    tree = tree_of(nodes)
    expected_tokens = run.state.request.acceptance.expected_tokens(tree)
    rest = run.draft + run.grow + run.other
    values = [gain / (rest + price(n + 1, run.context)) for n, gain in enumerate(expected_tokens)]
    chosen = run.controller.choose(tree, run.ctx(), run.state)
    # The roofs meet near 34 tokens, where the table interpolates between 32 and 64.
    assert values[chosen] >= 0.97 * max(values)


def test_speed_is_within_5_percent_of_the_best_fixed_budget():
    truth = {"acceptance": 0.7, "noise": 0.1}
    ours = speed(simulation(**truth).run(400))
    fixed = [
        speed(Simulation(Fixed(FixedOptions(nodes=nodes)), None, **truth).run(400))
        for nodes in (0, 4, 8, 16, 24, 32, 64)
    ]
    assert ours > 0.95 * max(fixed)


def test_round_times_change_stage_times_and_no_forward_times():
    run = simulation()
    table = run.machine
    run.spike = 3.0
    run.run(40)
    after = run.state.machine
    assert float(after.forward(16, 64)) == float(table.forward(16, 64))
    assert after.stages.draft[-1] == pytest.approx(3 * run.draft)
    # Negative control: the roofline follows a machine that is three times slower.
    roofline = Roofline(RooflineOptions(), clock=still)
    other = Simulation(roofline, roofline.init(Costs()), spike=3.0)
    before = float(other.machine.forward(16, 64))
    other.run(40)
    assert float(other.state.machine.forward(16, 64)) > 2 * before


def test_the_table_is_read_from_rooflines_stored_probes():
    Roofline(RooflineOptions(), clock=still).init(Costs())
    costs = Costs()
    model = measured().init(costs)
    assert model.source == "store"
    assert len(costs.probes) == 2  # a small and a larger forward confirm it
    assert float(model.forward(16, CONTEXTS[0])) == pytest.approx(two_roofs(16, CONTEXTS[0]))


@pytest.mark.parametrize("options", [{"refresh": True}, {}])
def test_refresh_or_changed_times_measure_the_table_again(options):
    Roofline(RooflineOptions(), clock=still).init(Costs())

    def slower(tokens, context):
        return two_roofs(tokens, context) * (1 if options else 5)

    costs = Costs(slower)
    model = measured(**options).init(costs)
    assert model.source == "probe"
    assert len(costs.probes) > len(SIZES)
    assert float(model.forward(16, CONTEXTS[0])) == pytest.approx(slower(16, CONTEXTS[0]))


def test_no_measurement_within_the_limit_is_an_error():
    ticks = itertools.count(0.0, 100.0)
    with pytest.raises(DraftwoodError, match=r"raise controller\.probe_seconds, or use roofline"):
        Measured(MeasuredOptions(), clock=lambda: next(ticks)).init(Costs())


@pytest.mark.parametrize(("kind", "error"), [(Roofline, 0.02), (Measured, 0.1)])
def test_forecasts_match_the_tokens_and_times_of_rounds(kind, error):
    """On average, on a machine and a text that do not change."""
    options = RooflineOptions() if kind is Roofline else MeasuredOptions()
    controller = kind(options, clock=still)
    run = Simulation(controller, controller.init(Costs()), acceptance=0.8, rng=random.Random(5))
    run.run(60)
    errors, expected, committed = [], [], []
    for _ in range(200):
        state = run.state
        (stats,) = run.run(1)
        forecast = controller.forecast(stats, state)
        assert len(forecast.tokens) == len(forecast.seconds) == stats.budget + 1
        took = stats.timings.total
        errors.append(abs(forecast.seconds[-1] / took - 1))
        expected.append(forecast.tokens[-1])
        committed.append(stats.committed)
    assert statistics.median(errors) < error
    assert statistics.mean(expected) == pytest.approx(statistics.mean(committed), rel=0.1)


def test_the_forecast_of_a_plain_round_is_one_token_in_a_plain_step():
    run = simulation(acceptance=0.0)
    history = run.run(60)
    plain = next(stats for stats in history if not stats.drafted)
    forecast = run.controller.forecast(plain, run.state)
    assert forecast.tokens == (1.0,)
    assert forecast.seconds == (run.state.machine.plain_step(plain.context),)


def test_the_fixed_controller_has_no_forecast():
    run = Simulation(Fixed(FixedOptions(nodes=4)), None)
    (stats,) = run.run(1)
    assert run.controller.forecast(stats, ControllerState(None, None)) is None


def test_a_measured_cost_model_has_source_probe():
    assert isinstance(measured().init(Costs()), CostModel)
    assert measured().init(Costs()).source == "probe"
