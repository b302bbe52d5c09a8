"""Keyed draws: independent of call order, different between streams, never an impossible token."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftwood.core.randomness import Seeded, inverse_cdf


def test_a_draw_depends_on_its_key_and_not_on_call_order() -> None:
    forwards = [Seeded(7).stream("verify").uniform(p) for p in range(20)]
    backwards = [Seeded(7).stream("verify").uniform(p) for p in reversed(range(20))]
    assert forwards == backwards[::-1]
    assert len(set(forwards)) == 20


def test_seed_stream_position_and_draw_all_matter() -> None:
    base = Seeded(7).stream("verify")
    others = [
        Seeded(8).stream("verify").uniform(3),
        Seeded(7).stream("draft").uniform(3),
        base.stream("x").uniform(3),
        base.uniform(4),
        base.uniform(3, 1),
    ]
    assert len({base.uniform(3), *others}) == 6


def test_uniforms_look_uniform() -> None:
    values = torch.tensor([Seeded(1).uniform(p, d) for p in range(200) for d in range(20)])
    counts = torch.histc(values, 10, 0, 1)
    chi_square = float(((counts - 400) ** 2 / 400).sum())
    assert chi_square < 42.5  # 9 degrees of freedom, one in 4e5
    assert values.min() >= 0
    assert values.max() < 1


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0, 1, exclude_max=True))
def test_an_impossible_token_is_never_drawn(weights: list[float], u: float) -> None:
    if sum(weights) == 0:
        weights[0] = 1.0
    law = torch.tensor(weights, dtype=torch.float64)
    assert law[inverse_cdf(law, u)] > 0


@pytest.mark.parametrize(("u", "token"), [(0.0, 1), (0.2499, 1), (0.25, 3), (0.99999, 3)])
def test_inverse_cdf_is_right_at_its_boundaries(u: float, token: int) -> None:
    assert inverse_cdf(torch.tensor([0.0, 0.25, 0.0, 0.75]), u) == token


def test_accept_is_strict_at_zero_and_certain_at_one() -> None:
    class Zero(Seeded):
        def uniform(self, position: int, draw: int = 0) -> float:
            return 0.0

    assert not Zero(0).accept(0.0, 0)
    assert Seeded(0).accept(1.0, 0)
