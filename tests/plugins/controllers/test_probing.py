"""Prices of a machine: measured in bounded time, fitted, kept, and never trusted blindly."""

import json
import logging
import math
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwood.core.errors import RequestError
from draftwood.core.interfaces.controller import ControllerState
from draftwood.core.tree import TokenTree
from draftwood.core.values import RoundContext
from draftwood.plugins.controllers.options import RooflineOptions
from draftwood.plugins.controllers.roofline import Roofline, store
from draftwood.plugins.controllers.roofline.corrections import KNOTS
from draftwood.plugins.controllers.roofline.cost_model import CostModel
from draftwood.plugins.controllers.roofline.fitting import fit_residuals, fit_roof
from draftwood.plugins.controllers.roofline.forward_table import ForwardTable
from draftwood.plugins.controllers.roofline.measuring import SIZES, Probe, time_forwards
from draftwood.plugins.controllers.roofline.probing import nominal, probe_machine
from draftwood.plugins.controllers.roofline.roof import Roof

from .machine import Costs, Price, two_roofs

SIZES_TRIED = (1, 2, 3, 7, 20, 33, 50, 65, 100, 129)


@pytest.fixture(autouse=True)
def own_store(tmp_path, monkeypatch):
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path))


class Clock:
    """A clock that only probes move."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += seconds


def init(costs: Costs, **options: object) -> CostModel:
    return Roofline(RooflineOptions(**options)).init(costs)  # type: ignore[arg-type]


def worst_error(prices: CostModel, price: Price, contexts: tuple[int, ...] = (64, 600)) -> float:
    return max(
        abs(float(prices.forward(s, c)) / price(s, c) - 1.0) for s in SIZES_TRIED for c in contexts
    )


def test_a_machine_of_two_roofs_is_found() -> None:
    prices = init(Costs())
    assert prices.source == "probe"
    assert worst_error(prices, two_roofs) < 0.01
    # Negative control: counted work at the device's rates alone is far off.
    assert worst_error(nominal(Costs()), two_roofs) > 0.3


@pytest.mark.parametrize("line", [0.0, 1e-4, 5e-3])
def test_one_roof_is_enough_where_there_is_one(line: float) -> None:
    def price(tokens: int, context: int) -> float:
        return 0.003 + line * tokens

    # The counted work grows a little with the context and these prices do not.
    assert worst_error(init(Costs(price)), price) < 0.06


def test_a_and_b_are_not_negative_and_noise_is_smoothed() -> None:
    rng = np.random.default_rng(0)

    def noisy(tokens: int, context: int) -> float:
        return two_roofs(tokens, context) * math.exp(rng.normal(0, 0.03))

    prices = init(Costs(noisy))
    assert min(prices.forward_model.compute[1], prices.forward_model.memory[0]) >= 0.0
    assert worst_error(prices, two_roofs) < 0.12


def test_a_disturbed_probe_is_no_dearer_than_a_larger_one() -> None:
    def disturbed(tokens: int, context: int) -> float:
        return two_roofs(tokens, context) * (3.0 if tokens in (2, 16) else 1.0)

    assert worst_error(init(Costs(disturbed)), two_roofs) < 0.2
    # Negative control: the largest one has nothing to be compared with.
    last = Costs(lambda s, c: two_roofs(s, c) * (3.0 if s == 128 else 1.0))
    assert worst_error(init(last, refresh=True), two_roofs) > 0.5


def test_one_token_has_a_price_of_its_own() -> None:
    def price(tokens: int, context: int) -> float:
        return 0.002 if tokens == 1 else two_roofs(tokens, context)

    prices = init(Costs(price))
    assert float(prices.forward(1, 64)) == pytest.approx(0.002, rel=0.01)
    assert float(prices.forward(2, 64)) == pytest.approx(two_roofs(2, 64), rel=0.05)


def test_a_number_and_an_array_of_sizes_have_the_same_prices() -> None:
    prices = init(Costs())
    sizes = np.arange(1.0, 258.0)
    assert np.allclose(prices.forward(sizes, 64), [prices.forward(int(s), 64) for s in sizes])


@pytest.mark.parametrize("seconds", [1e-4, 0.01, 0.3, 1.4, 4.0])
def test_probing_ends_in_time_on_a_slow_machine(seconds: float) -> None:
    clock = Clock()

    def price(tokens: int, context: int) -> float:
        return seconds * (1 + tokens / 16)

    costs = Costs(price, on_probe=clock.pass_)
    prices, _ = probe_machine(costs, clock, 5.0)
    assert clock.now <= 5.0
    assert costs.probes[0] == (1, 64)
    assert float(prices.forward(1, 64)) == pytest.approx(price(1, 64), rel=0.05)
    # Negative control: all the probes that a fast machine gets would not have ended in time.
    everything = sum(price(size, 64) for size in SIZES)
    assert (len(costs.probes) > 20) == (everything < 1.0)


def test_a_machine_too_slow_to_probe_twice_has_the_prior_scaled_to_it() -> None:
    clock = Clock()
    costs = Costs(lambda tokens, context: 4.0, on_probe=clock.pass_)
    prices, _ = probe_machine(costs, clock, 5.0)
    assert costs.probes == [(1, 64)]
    assert float(prices.forward(1, 64)) == pytest.approx(4.0)
    assert float(prices.forward(128, 64)) > 4.0


def test_without_time_there_is_still_a_prior() -> None:
    clock = Clock()

    class SlowPeaks(Costs):
        def peaks(self) -> tuple[float, float]:
            clock.pass_(10.0)
            return super().peaks()

    costs = SlowPeaks()
    prices, _ = probe_machine(costs, clock, 5.0)
    assert costs.probes == []
    assert prices.source == "prior"
    assert float(prices.forward(1, 64)) > 0.0
    assert float(prices.forward(128, 64)) > float(prices.forward(1, 64))


def test_what_a_target_cannot_hold_is_left_out() -> None:
    def small(tokens: int, context: int) -> float:
        if tokens + context > 100:
            raise RequestError("too long")
        return two_roofs(tokens, context)

    costs = Costs(small)
    prices = init(costs)
    for size in (1, 2, 8, 30, 36):
        assert float(prices.forward(size, 64)) == pytest.approx(two_roofs(size, 64), rel=0.1)
    probes = time_forwards(costs, Clock(), 5.0)
    assert {probe.tokens for probe in probes} == {1, 2, 4, 8, 9, 16, 17, 32, 33}
    assert fit_roof(costs, costs.peaks(), probes).seconds(1, 64) > 0


def test_stored_prices_are_used_and_equal_the_measured_ones() -> None:
    first = init(Costs())
    again = Costs()
    second = init(again)
    assert second.source == "store"
    assert (second.forward_model, second.corrections) == (first.forward_model, first.corrections)
    assert len(again.probes) == 2  # to confirm them
    refreshed = Costs()
    assert init(refreshed, refresh=True).source == "probe"


def test_another_identity_is_measured() -> None:
    init(Costs(name="one"))
    assert init(Costs(name="two")).source == "probe"


def test_a_machine_that_changed_under_one_name_is_measured_again() -> None:
    init(Costs())

    def slower(tokens: int, context: int) -> float:
        return 5 * two_roofs(tokens, context)

    prices = init(Costs(slower))
    assert prices.source == "probe"
    assert worst_error(prices, slower) < 0.01


def test_what_a_busy_machine_takes_does_not_replace_what_it_took_in_peace() -> None:
    init(Costs())

    def times(factor: float) -> Price:
        return lambda tokens, context: factor * two_roofs(tokens, context)

    assert init(Costs(times(5.0))).source == "probe"
    assert init(Costs()).source == "store"
    # Measured faster, or measured because someone asked for it, it does.
    init(Costs(times(0.2)))
    assert init(Costs(times(0.2))).source == "store"
    init(Costs(times(5.0)), refresh=True)
    assert init(Costs(times(5.0))).source == "store"


def test_a_size_probed_at_several_contexts_does_not_stand_out() -> None:
    """A context that the roofs miss by a fifth is no property of the sizes probed there."""
    roof = Roof((0.0,) * 5, (0.01, 0.0, 0.0, 0.0, 0.0))
    near = [Probe(size, 64, 0.01) for size in SIZES]
    far = [Probe(size, 1024, 0.012) for size in SIZES[::3]]
    found = fit_residuals(roof, near + far)
    assert max(found) - min(found) < 1e-12
    # What is said of all sizes lies between the contexts.
    assert 0.0 < found[0] < math.log(1.2)
    one = [Probe(16, 1024, 0.024), *far]
    assert fit_residuals(roof, near + one)[KNOTS.index(16)] > found[0] + 0.2


def _spoil(change) -> str:
    path = store.path_of(Costs().identity)
    data = json.loads(path.read_text())
    change(data)
    return json.dumps(data)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda: "",
        lambda: "[]",
        lambda: '{"format": 1',
        lambda: "null",
        lambda: _spoil(lambda data: data.update(format=0)),
        lambda: _spoil(lambda data: data.update(identity={"device": "another"})),
        lambda: _spoil(lambda data: data.update(knots=[1, 2])),
        lambda: _spoil(lambda data: data["residuals"].pop()),
        lambda: _spoil(lambda data: data.update(compute=[math.nan] * 5)),
        lambda: _spoil(lambda data: data.update(memory="fast")),
        lambda: _spoil(lambda data: data.update(memory=[0.0] * 5, compute=[0.0] * 5)),
        lambda: _spoil(lambda data: data.update(memory=[-1.0] * 5, compute=[-1.0] * 5)),
        lambda: _spoil(lambda data: data.pop("compute")),
        lambda: "\ud800".encode("utf-16", "surrogatepass").decode("latin-1"),
    ],
)
def test_a_spoilt_file_is_measured_again_and_replaced(spoil, caplog) -> None:
    good = init(Costs())
    path = store.path_of(Costs().identity)
    path.write_bytes(spoil().encode("latin-1"))
    with caplog.at_level(logging.WARNING, "draftwood"):
        prices = init(Costs())
    assert prices.source == "probe"
    assert prices.forward_model == good.forward_model
    assert init(Costs()).source == "store"


def test_a_file_is_written_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    init(Costs())
    path = store.path_of(Costs().identity)
    before = path.read_text()

    def full_disk(self: Path, text: str, **_: object) -> None:
        self.write_bytes(text.encode()[:10])
        raise OSError("no space left")

    monkeypatch.setattr(Path, "write_text", full_disk)
    prices = init(Costs(), refresh=True)
    assert prices.source == "probe"  # not being able to keep them is no error
    assert path.read_text() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_store_that_cannot_be_written_is_no_error(tmp_path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path / "file"))
    assert init(Costs()).source == "probe"


def test_the_store_lies_where_the_environment_says(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path / "own"))
    assert store.path_of({}).parent == tmp_path / "own" / "roofline"
    monkeypatch.delenv("DRAFTWOOD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert store.path_of({}).parent == tmp_path / "xdg" / "draftwood" / "roofline"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert store.path_of({}).parent == tmp_path / ".cache" / "draftwood" / "roofline"
    assert os.environ["HOME"] == str(tmp_path)


def test_every_power_of_two_that_is_probed_is_a_knot() -> None:
    assert set(SIZES) <= set(KNOTS)
    assert KNOTS[0] == 1
    assert KNOTS[1] == 2  # nothing between: one token's price is its own


def tiles(tokens: int, context: int) -> float:
    """Rows in tiles of sixteen: the first row of a tile costs what the whole tile does."""
    return 0.01 + 0.002 * ((tokens - 1) // 16) + 1e-7 * context


def test_the_first_row_of_a_tile_costs_more_than_those_that_fill_it() -> None:
    prices = init(Costs(tiles))
    known = prices.forwards(40, 64)
    assert known[16] - known[15] == pytest.approx(0.002, rel=0.1)
    assert known[15] - known[12] < 0.0005
    assert known[32] - known[31] == pytest.approx(0.002, rel=0.1)


@pytest.mark.parametrize("share", [0.5, 0.8])
def test_a_tree_fills_a_tile_and_does_not_begin_another(share: float) -> None:
    """Nodes that are worth less than a new tile, and more than a place in one that is paid for."""
    controller = Roofline(RooflineOptions())
    prices = controller.init(Costs(tiles))
    scores = [math.log(share * 0.93**n) for n in range(64)]
    tree = TokenTree.from_lists(
        list(range(65)), [-1, *[0] * 64], [0, *[1] * 64], [0.0, *(s - 2.0 for s in scores)]
    )
    state = ControllerState(prices, controller.open())
    chosen = controller.choose(tree, RoundContext(0, 64, 100, None), state)
    assert (chosen + 1) % 16 == 0


@given(
    steps=st.lists(st.integers(0, 5), min_size=2, max_size=40),
    pace=st.sampled_from([1.0, 30.0]),
)
def test_a_floor_is_the_least_mean_step_to_any_larger_size(steps: list[int], pace: float) -> None:
    curve = np.cumsum([7, *steps]) * 1e-3
    nodes = len(steps)

    def price(tokens: int, context: int) -> float:
        return float(curve[tokens - 1])

    prices = CostModel(ForwardTable.of([Probe(n, 64, price(n, 64)) for n in range(1, nodes + 2)]))
    floors = prices.floors(nodes, 64, pace, 1.0)
    for node in range(1, nodes + 1):
        slopes = [(curve[n] - curve[node - 1]) / (n - node + 1) for n in range(node, nodes + 1)]
        assert math.exp(floors[node - 1]) == pytest.approx(pace * min(slopes), abs=1e-12)
