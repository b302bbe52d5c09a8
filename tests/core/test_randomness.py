"""Keyed draws: independent of call order, different between streams, of positive probability."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftwood.core.randomness import Seeded, _uniforms


def test_a_draw_depends_on_its_key_and_not_on_call_order() -> None:
    forwards = [Seeded(7).stream("verify").uniform(p) for p in range(20)]
    backwards = [Seeded(7).stream("verify").uniform(p) for p in reversed(range(20))]
    assert forwards == backwards[::-1]
    assert len(set(forwards)) == 20


@pytest.mark.covers("shared-randomness")
def test_a_draw_depends_on_seed_stream_position_and_index() -> None:
    base = Seeded(7).stream("verify")
    others = [
        Seeded(8).stream("verify").uniform(3),
        Seeded(7).stream("draft").uniform(3),
        base.stream("x").uniform(3),
        base.uniform(4),
        base.uniform(3, 1),
    ]
    assert len({base.uniform(3), *others}) == 6


def test_uniforms_pass_a_chi_square_test() -> None:
    values = torch.tensor([Seeded(1).uniform(p, d) for p in range(200) for d in range(20)])
    counts = torch.histc(values, 10, 0, 1)
    chi_square = float(((counts - 400) ** 2 / 400).sum())
    assert chi_square < 42.5  # 9 degrees of freedom, one in 4e5
    assert values.min() >= 0
    assert values.max() < 1


def test_token_noise_is_splitmix64_counting_from_the_key() -> None:
    """Against the generator's published recurrence in plain integers."""
    mask = 2**64 - 1

    def splitmix(state: int) -> int:
        z = state & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    for key in (0, 1, 2**63, 2**64 - 1, 1234567890123456789):
        expected = [
            ((splitmix(key + i * 0x9E3779B97F4A7C15) >> 11) + 0.5) * 2.0**-53 for i in range(1, 9)
        ]
        assert _uniforms(key, 8, "cpu").tolist() == expected


def test_draws_follow_the_distribution() -> None:
    probs = torch.tensor([0.5, 0.0, 0.3, 0.2], dtype=torch.float64)
    stream, count = Seeded(3).stream("verify"), 4000
    drawn = torch.tensor([stream.categorical(probs, p) for p in range(count)])
    counts = torch.bincount(drawn, minlength=4).double()
    expected = probs * count
    chi_square = float(((counts - expected) ** 2 / expected)[probs > 0].sum())
    assert chi_square < 27.6  # 2 degrees of freedom, one in 1e6
    flat = torch.full((4,), 1000.0)
    assert float(((counts - flat) ** 2 / flat).sum()) > 27.6  # and not some other distribution


def test_scaling_the_weights_does_not_change_a_draw() -> None:
    probs = torch.tensor([0.2, 0.5, 0.3])
    stream = Seeded(5)
    assert [stream.categorical(probs, p) for p in range(50)] == [
        stream.categorical(7 * probs, p) for p in range(50)
    ]


@pytest.mark.covers("non-finite-logits")
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.integers(0, 2**64 - 1))
def test_a_token_of_probability_zero_is_never_drawn(weights: list[float], seed: int) -> None:
    if sum(weights) == 0:
        weights[0] = 1.0
    probs = torch.tensor(weights, dtype=torch.float64)
    assert probs[Seeded(seed).categorical(probs, 0)] > 0


def test_rounding_moves_a_draw_only_where_two_tokens_nearly_tie() -> None:
    """Negative control: comparing with the cumulative distribution changes draws by rounding."""
    generator = torch.Generator().manual_seed(0)
    probs = torch.rand(50_000, generator=generator, dtype=torch.float64)
    noise = 1 + 1e-5 * torch.randn(50_000, generator=generator, dtype=torch.float64)
    stream = Seeded(11)
    moved = by_steps = 0
    for position in range(60):
        moved += stream.categorical(probs, position) != stream.categorical(probs * noise, position)
        u = stream.uniform(position)
        steps = [(x.cumsum(0) / x.sum() <= u).sum() for x in (probs, probs * noise)]
        by_steps += bool(steps[0] != steps[1])
    assert moved == 0
    assert by_steps > 0


def test_accept_is_strict_at_zero_and_certain_at_one() -> None:
    class Zero(Seeded):
        def uniform(self, position: int, draw: int = 0) -> float:
            return 0.0

    assert not Zero(0).accept(0.0, 0)
    assert Seeded(0).accept(1.0, 0)
