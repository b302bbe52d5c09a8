"""From logits to distributions: equal to Hugging Face's warpers, finite everywhere, ties in one
order."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from draftwood.core.distributions import sampling_probs, stable_topk
from draftwood.core.options import GREEDY_BELOW, Sampling

SETTINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.1, 0.7, 1.0, 1.5, 4.0]),
    top_k=st.none() | st.integers(1, 12),
    top_p=st.none() | st.sampled_from([0.05, 0.5, 0.9, 1.0]),
    min_p=st.none() | st.sampled_from([0.0, 0.05, 0.5, 1.0]),
)


def warpers(sampling: Sampling) -> LogitsProcessorList:
    found = LogitsProcessorList()
    if sampling.temperature != 1.0:
        found.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k is not None:
        found.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p is not None and sampling.top_p < 1.0:
        found.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p is not None:
        found.append(MinPLogitsWarper(sampling.min_p))
    return found


def logits_of(seed: int, vocab: int = 10, rows: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(rows, vocab, generator=generator, dtype=torch.float64)


@pytest.mark.covers("filter-on-bonus-only")
@given(st.integers(0, 10**6), SETTINGS)
def test_distributions_are_those_of_the_warpers_in_their_order(
    seed: int, sampling: Sampling
) -> None:
    logits = logits_of(seed)
    expected = warpers(sampling)(torch.zeros(3, 1, dtype=torch.long), logits.clone()).softmax(-1)
    found = sampling_probs(logits, sampling)
    assert torch.equal(found > 0, expected > 0)
    assert torch.allclose(found, expected, atol=1e-12)


def test_the_order_of_filters_matters_and_is_temperature_first() -> None:
    """Negative control for the comparison above: filters in another order give another
    distribution."""
    logits, sampling = logits_of(1), Sampling(temperature=4.0, top_p=0.5)
    cold = sampling_probs(logits, Sampling(temperature=1.0, top_p=0.5))
    assert not torch.equal(sampling_probs(logits, sampling) > 0, cold > 0)


@pytest.mark.covers("tiny-temperature")
@pytest.mark.parametrize("temperature", [0.0, 1e-8, 1e-6, 0.99 * GREEDY_BELOW])
def test_below_one_threshold_a_distribution_is_the_first_argmax(temperature: float) -> None:
    logits = torch.tensor([[1.0, 7.0, 7.0], [2.0, -1e4, 1e4]])
    probs = sampling_probs(logits, Sampling(temperature=temperature))
    assert probs.tolist() == [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]


@pytest.mark.covers("tiny-temperature")
@pytest.mark.parametrize("temperature", [1e-5, 1e-4, 1e-3, 0.1, 1.0])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_huge_logits_give_finite_distributions(temperature: float, dtype: torch.dtype) -> None:
    logits = torch.tensor([1e4, -1e4, 9.9e3, -torch.inf], dtype=dtype)
    probs = sampling_probs(logits, Sampling(temperature, top_p=0.9, min_p=0.01))
    assert probs.dtype == (torch.float64 if dtype is torch.float64 else torch.float32)
    assert probs.isfinite().all()
    assert float(probs.sum()) == pytest.approx(1.0)
    assert int(probs.argmax()) == 0
    assert probs[3] == 0


@given(st.integers(0, 10**6), SETTINGS)
def test_one_row_has_the_distribution_it_has_among_others(seed: int, sampling: Sampling) -> None:
    logits = logits_of(seed, rows=4)
    together = sampling_probs(logits, sampling)
    for row, probs in zip(logits, together, strict=True):
        assert torch.equal(sampling_probs(row, sampling), probs)


@given(
    st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.5]), min_size=1, max_size=12),
    st.integers(1, 14),
    st.randoms(use_true_random=False),
)
def test_best_orders_equal_values_by_token_at_the_boundary_too(values, k, rng) -> None:
    ids = list(range(0, 3 * len(values), 3))
    rng.shuffle(ids)
    tokens, probs = stable_topk(torch.tensor(values), k, torch.tensor(ids))
    expected = sorted(zip(values, ids, strict=True), key=lambda pair: (-pair[0], pair[1]))[:k]
    positive = [(v, i) for v, i in expected if v > 0]
    found = list(zip(probs.tolist(), tokens.tolist(), strict=True))
    assert len(found) == min(k, len(values))
    assert [(pytest.approx(v), i) for v, i in positive] == found[: len(positive)]
    assert all(value == 0 for value, _ in found[len(positive) :])


@given(st.integers(0, 10**6), st.sampled_from([0.3, 0.6, 0.9]))
def test_of_equals_at_the_edge_of_top_p_the_highest_ids_stay(seed: int, top_p: float) -> None:
    """A sort leaves their order open, and differs from device to device."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, 60, generator=generator, dtype=torch.float64).round()
    for row, probs in zip(logits, sampling_probs(logits, Sampling(1.0, top_p=top_p)), strict=True):
        order = sorted(range(60), key=lambda token: (-float(row[token]), -token))
        mass = row.softmax(-1)[order].cumsum(0)
        size = int((mass < top_p - 1e-12).sum()) + 1
        assert probs.nonzero().flatten().tolist() == sorted(order[:size])
