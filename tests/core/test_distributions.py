"""From logits to distributions: equal to Hugging Face's warpers, finite, ties in a fixed order."""

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


def hf_warpers(sampling: Sampling) -> LogitsProcessorList:
    warpers = LogitsProcessorList()
    if sampling.temperature != 1.0:
        warpers.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k is not None:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p is not None and sampling.top_p < 1.0:
        warpers.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p is not None:
        warpers.append(MinPLogitsWarper(sampling.min_p))
    return warpers


def logits_of(seed: int, vocab: int = 10, rows: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(rows, vocab, generator=generator, dtype=torch.float64)


@pytest.mark.covers("filter-on-bonus-only")
@given(st.integers(0, 10**6), SETTINGS)
def test_sampling_probs_equal_the_warpers_applied_in_order(seed: int, sampling: Sampling) -> None:
    logits = logits_of(seed)
    expected = hf_warpers(sampling)(torch.zeros(3, 1, dtype=torch.long), logits.clone()).softmax(-1)
    probs = sampling_probs(logits, sampling)
    assert torch.equal(probs > 0, expected > 0)
    assert torch.allclose(probs, expected, atol=1e-12)


def test_top_p_before_temperature_would_keep_other_tokens() -> None:
    """Negative control for the comparison above: another order gives another distribution."""
    logits, sampling = logits_of(1), Sampling(temperature=4.0, top_p=0.5)
    cold = sampling_probs(logits, Sampling(temperature=1.0, top_p=0.5))
    assert not torch.equal(sampling_probs(logits, sampling) > 0, cold > 0)


@pytest.mark.covers("tiny-temperature")
@pytest.mark.parametrize("temperature", [0.0, 1e-8, 1e-6, 0.99 * GREEDY_BELOW])
def test_temperatures_below_the_greedy_threshold_give_the_first_argmax(temperature: float) -> None:
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
def test_a_row_has_the_same_distribution_alone_and_in_a_batch(
    seed: int, sampling: Sampling
) -> None:
    logits = logits_of(seed, rows=4)
    batch = sampling_probs(logits, sampling)
    for row, probs in zip(logits, batch, strict=True):
        assert torch.equal(sampling_probs(row, sampling), probs)


@given(
    st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.5]), min_size=1, max_size=12),
    st.integers(1, 14),
    st.randoms(use_true_random=False),
)
def test_stable_topk_orders_equal_values_by_token_at_the_boundary(values, k, rng) -> None:
    ids = list(range(0, 3 * len(values), 3))
    rng.shuffle(ids)
    tokens, probs = stable_topk(torch.tensor(values), k, torch.tensor(ids))
    expected = sorted(zip(values, ids, strict=True), key=lambda pair: (-pair[0], pair[1]))[:k]
    positive = [(v, i) for v, i in expected if v > 0]
    pairs = list(zip(probs.tolist(), tokens.tolist(), strict=True))
    assert len(pairs) == min(k, len(values))
    assert [(pytest.approx(v), i) for v, i in positive] == pairs[: len(positive)]
    assert all(value == 0 for value, _ in pairs[len(positive) :])


@given(st.integers(0, 10**6), st.sampled_from([0.3, 0.6, 0.9]))
def test_top_p_keeps_the_highest_ids_of_equal_tokens_at_its_edge(seed: int, top_p: float) -> None:
    """Their order in a sort is undefined and differs between devices."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, 60, generator=generator, dtype=torch.float64).round()
    for row, probs in zip(logits, sampling_probs(logits, Sampling(1.0, top_p=top_p)), strict=True):
        order = sorted(range(60), key=lambda token: (-float(row[token]), -token))
        mass = row.softmax(-1)[order].cumsum(0)
        size = int((mass < top_p - 1e-12).sum()) + 1
        assert probs.nonzero().flatten().tolist() == sorted(order[:size])


WEIGHTS = st.lists(st.sampled_from([0.0, 1.0, 2.0, 4.0]), min_size=2, max_size=12)


@given(st.lists(WEIGHTS, min_size=1, max_size=3), st.integers(1, 14), st.randoms())
def test_stable_topk_is_a_stable_sort_by_value_and_token(rows, k, random) -> None:
    width = min(map(len, rows))
    probs = torch.tensor([row[:width] for row in rows])
    ids = list(range(width + 3))
    random.shuffle(ids)
    for names in (None, torch.tensor(ids[:width])):
        tokens, values = stable_topk(probs, k, names)
        assert tokens.shape == values.shape == (len(rows), min(k, width))
        for row, got, value in zip(probs.tolist(), tokens.tolist(), values.tolist(), strict=True):
            named = list(range(width)) if names is None else names.tolist()
            order = sorted(range(width), key=lambda i: (-row[i], named[i]))[:k]
            assert value == [row[i] for i in order]
            positive = sum(v > 0 for v in value)
            assert got[:positive] == [named[i] for i in order[:positive]]
            assert len(set(got)) == len(got)


def test_topk_alone_does_not_order_ties_by_token() -> None:
    """Negative control: with descending ids every tie is reversed."""
    probs = torch.full((1, 6), 1 / 6)
    ids = torch.arange(5, -1, -1)
    assert stable_topk(probs, 3, ids)[0].tolist() == [[0, 1, 2]]
    assert ids[probs.topk(3).indices].tolist() != [[0, 1, 2]]
