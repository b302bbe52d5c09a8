"""Cost models: measured in bounded time, fitted, stored, and confirmed when loaded."""

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

from ..machine import Costs, Price, two_roofs

TEST_SIZES = (1, 2, 3, 7, 20, 33, 50, 65, 100, 129)


@pytest.fixture(autouse=True)
def empty_store(tmp_path, monkeypatch):
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path))


class Clock:
    """A clock that only timings advance."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += seconds


def init(costs: Costs, **options: object) -> CostModel:
    return Roofline(RooflineOptions(**options)).init(costs)  # type: ignore[arg-type]


def worst_error(model: CostModel, price: Price, contexts: tuple[int, ...] = (64, 600)) -> float:
    return max(
        abs(float(model.forward(s, c)) / price(s, c) - 1.0) for s in TEST_SIZES for c in contexts
    )


def test_two_roofs_are_fitted_within_1_percent() -> None:
    model = init(Costs())
    assert model.source == "probe"
    assert worst_error(model, two_roofs) < 0.01
    # Negative control: counted work at nominal rates is far off.
    assert worst_error(nominal(Costs()), two_roofs) > 0.3


@pytest.mark.parametrize("line", [0.0, 1e-4, 5e-3])
def test_a_machine_with_one_roof_is_fitted(line: float) -> None:
    def price(tokens: int, context: int) -> float:
        return 0.003 + line * tokens

    # The counted work grows slightly with the context, and these times do not.
    assert worst_error(init(Costs(price)), price) < 0.06


def test_fitted_coefficients_are_not_negative_under_noise() -> None:
    rng = np.random.default_rng(0)

    def noisy(tokens: int, context: int) -> float:
        return two_roofs(tokens, context) * math.exp(rng.normal(0, 0.03))

    model = init(Costs(noisy))
    assert min(model.forward_model.compute[1], model.forward_model.memory[0]) >= 0.0
    assert worst_error(model, two_roofs) < 0.12


def test_a_disturbed_probe_is_lowered_to_that_of_a_larger_size() -> None:
    def disturbed(tokens: int, context: int) -> float:
        return two_roofs(tokens, context) * (3.0 if tokens in (2, 16) else 1.0)

    assert worst_error(init(Costs(disturbed)), two_roofs) < 0.2
    # Negative control: there is no larger size than the largest.
    last = Costs(lambda s, c: two_roofs(s, c) * (3.0 if s == 128 else 1.0))
    assert worst_error(init(last, refresh=True), two_roofs) > 0.5


def test_one_token_has_a_separate_time() -> None:
    def price(tokens: int, context: int) -> float:
        return 0.002 if tokens == 1 else two_roofs(tokens, context)

    model = init(Costs(price))
    assert float(model.forward(1, 64)) == pytest.approx(0.002, rel=0.01)
    assert float(model.forward(2, 64)) == pytest.approx(two_roofs(2, 64), rel=0.05)


def test_numbers_and_arrays_of_sizes_give_the_same_times() -> None:
    model = init(Costs())
    sizes = np.arange(1.0, 258.0)
    assert np.allclose(model.forward(sizes, 64), [model.forward(int(s), 64) for s in sizes])


@pytest.mark.parametrize("seconds", [1e-4, 0.01, 0.3, 1.4, 4.0])
def test_probing_stays_within_its_limit_on_slow_machines(seconds: float) -> None:
    clock = Clock()

    def price(tokens: int, context: int) -> float:
        return seconds * (1 + tokens / 16)

    costs = Costs(price, on_probe=clock.pass_)
    model, _ = probe_machine(costs, clock, 5.0)
    assert clock.now <= 5.0
    assert costs.probes[0] == (1, 64)
    assert float(model.forward(1, 64)) == pytest.approx(price(1, 64), rel=0.05)
    # Negative control: all probes of a fast machine would have exceeded the limit.
    everything = sum(price(size, 64) for size in SIZES)
    assert (len(costs.probes) > 20) == (everything < 1.0)


def test_a_single_probe_scales_the_prior() -> None:
    clock = Clock()
    costs = Costs(lambda tokens, context: 4.0, on_probe=clock.pass_)
    model, _ = probe_machine(costs, clock, 5.0)
    assert costs.probes == [(1, 64)]
    assert float(model.forward(1, 64)) == pytest.approx(4.0)
    assert float(model.forward(128, 64)) > 4.0


def test_probing_without_time_returns_the_prior() -> None:
    clock = Clock()

    class SlowPeaks(Costs):
        def peaks(self) -> tuple[float, float]:
            clock.pass_(10.0)
            return super().peaks()

    costs = SlowPeaks()
    model, _ = probe_machine(costs, clock, 5.0)
    assert costs.probes == []
    assert model.source == "prior"
    assert float(model.forward(1, 64)) > 0.0
    assert float(model.forward(128, 64)) > float(model.forward(1, 64))


def test_sizes_beyond_the_targets_limit_are_left_out() -> None:
    def small(tokens: int, context: int) -> float:
        if tokens + context > 100:
            raise RequestError("too long")
        return two_roofs(tokens, context)

    costs = Costs(small)
    model = init(costs)
    for size in (1, 2, 8, 30, 36):
        assert float(model.forward(size, 64)) == pytest.approx(two_roofs(size, 64), rel=0.1)
    probes = time_forwards(costs, Clock(), 5.0)
    assert {probe.tokens for probe in probes} == {1, 2, 4, 8, 9, 16, 17, 32, 33}
    assert fit_roof(costs, costs.peaks(), probes).seconds(1, 64) > 0


def test_a_stored_cost_model_equals_the_measured_one() -> None:
    first = init(Costs())
    second_costs = Costs()
    second = init(second_costs)
    assert second.source == "store"
    assert (second.forward_model, second.corrections) == (first.forward_model, first.corrections)
    assert len(second_costs.probes) == 2  # to confirm them
    refreshed = Costs()
    assert init(refreshed, refresh=True).source == "probe"


def test_another_identity_is_measured_again() -> None:
    init(Costs(name="one"))
    assert init(Costs(name="two")).source == "probe"


def test_a_changed_machine_of_the_same_identity_is_measured_again() -> None:
    init(Costs())

    def slower(tokens: int, context: int) -> float:
        return 5 * two_roofs(tokens, context)

    model = init(Costs(slower))
    assert model.source == "probe"
    assert worst_error(model, slower) < 0.01


def test_slower_measurements_do_not_replace_stored_ones_unless_refreshed() -> None:
    init(Costs())

    def times(factor: float) -> Price:
        return lambda tokens, context: factor * two_roofs(tokens, context)

    assert init(Costs(times(5.0))).source == "probe"
    assert init(Costs()).source == "store"
    # Faster measurements, and refreshed ones, replace stored ones.
    init(Costs(times(0.2)))
    assert init(Costs(times(0.2))).source == "store"
    init(Costs(times(5.0)), refresh=True)
    assert init(Costs(times(5.0))).source == "store"


def test_sizes_probed_at_several_contexts_get_the_residual_of_their_neighbours() -> None:
    """An error of a context is not an error of the sizes probed at it."""
    roof = Roof((0.0,) * 5, (0.01, 0.0, 0.0, 0.0, 0.0))
    near = [Probe(size, 64, 0.01) for size in SIZES]
    far = [Probe(size, 1024, 0.012) for size in SIZES[::3]]
    found = fit_residuals(roof, near + far)
    assert max(found) - min(found) < 1e-12
    # The residual of all sizes lies between those of the contexts.
    assert 0.0 < found[0] < math.log(1.2)
    one = [Probe(16, 1024, 0.024), *far]
    assert fit_residuals(roof, near + one)[KNOTS.index(16)] > found[0] + 0.2


def _corrupted(change) -> str:
    path = store.path_of(Costs().identity)
    data = json.loads(path.read_text())
    change(data)
    return json.dumps(data)


@pytest.mark.parametrize(
    "corrupt",
    [
        lambda: "",
        lambda: "[]",
        lambda: '{"format": 1',
        lambda: "null",
        lambda: _corrupted(lambda data: data.update(format=0)),
        lambda: _corrupted(lambda data: data.update(identity={"device": "another"})),
        lambda: _corrupted(lambda data: data.update(knots=[1, 2])),
        lambda: _corrupted(lambda data: data["residuals"].pop()),
        lambda: _corrupted(lambda data: data.update(compute=[math.nan] * 5)),
        lambda: _corrupted(lambda data: data.update(memory="fast")),
        lambda: _corrupted(lambda data: data.update(memory=[0.0] * 5, compute=[0.0] * 5)),
        lambda: _corrupted(lambda data: data.update(memory=[-1.0] * 5, compute=[-1.0] * 5)),
        lambda: _corrupted(lambda data: data.pop("compute")),
        lambda: "\ud800".encode("utf-16", "surrogatepass").decode("latin-1"),
    ],
)
def test_an_invalid_file_is_measured_again_and_replaced(corrupt, caplog) -> None:
    good = init(Costs())
    path = store.path_of(Costs().identity)
    path.write_bytes(corrupt().encode("latin-1"))
    with caplog.at_level(logging.WARNING, "draftwood"):
        model = init(Costs())
    assert model.source == "probe"
    assert model.forward_model == good.forward_model
    assert init(Costs()).source == "store"


def test_files_are_written_atomically(monkeypatch: pytest.MonkeyPatch) -> None:
    init(Costs())
    path = store.path_of(Costs().identity)
    before = path.read_text()

    def full_disk(self: Path, text: str, **_: object) -> None:
        self.write_bytes(text.encode()[:10])
        raise OSError("no space left")

    monkeypatch.setattr(Path, "write_text", full_disk)
    model = init(Costs(), refresh=True)
    assert model.source == "probe"  # a failed write is no error
    assert path.read_text() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_an_unwritable_store_is_no_error(tmp_path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path / "file"))
    assert init(Costs()).source == "probe"


def test_the_store_folder_follows_the_environment(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path / "own"))
    assert store.path_of({}).parent == tmp_path / "own" / "roofline"
    monkeypatch.delenv("DRAFTWOOD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert store.path_of({}).parent == tmp_path / "xdg" / "draftwood" / "roofline"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert store.path_of({}).parent == tmp_path / ".cache" / "draftwood" / "roofline"
    assert os.environ["HOME"] == str(tmp_path)


def test_every_probed_size_is_a_knot() -> None:
    assert set(SIZES) <= set(KNOTS)
    assert KNOTS[0] == 1
    assert KNOTS[1] == 2  # no size between: one token has a separate residual


def tiles(tokens: int, context: int) -> float:
    """Rows are processed in tiles of sixteen: one row costs as much as a full tile."""
    return 0.01 + 0.002 * ((tokens - 1) // 16) + 1e-7 * context


def test_the_first_row_of_a_tile_costs_more_than_those_that_fill_it() -> None:
    model = init(Costs(tiles))
    known = model.forwards(40, 64)
    assert known[16] - known[15] == pytest.approx(0.002, rel=0.1)
    assert known[15] - known[12] < 0.0005
    assert known[32] - known[31] == pytest.approx(0.002, rel=0.1)


@pytest.mark.parametrize("share", [0.5, 0.8])
def test_budgets_end_at_a_full_tile(share: float) -> None:
    """Each node gains less than a new tile costs, and more than a further row of a tile."""
    controller = Roofline(RooflineOptions())
    model = controller.init(Costs(tiles))
    scores = [math.log(share * 0.93**n) for n in range(64)]
    tree = TokenTree.from_lists(
        list(range(65)), [-1, *[0] * 64], [0, *[1] * 64], [0.0, *(s - 2.0 for s in scores)]
    )
    state = ControllerState(model, controller.open())
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

    model = CostModel(ForwardTable.of([Probe(n, 64, price(n, 64)) for n in range(1, nodes + 2)]))
    floors = model.floors(nodes, 64, pace, 1.0)
    for node in range(1, nodes + 1):
        slopes = [(curve[n] - curve[node - 1]) / (n - node + 1) for n in range(node, nodes + 1)]
        assert math.exp(floors[node - 1]) == pytest.approx(pace * min(slopes), abs=1e-12)
