"""Ratios and intervals: exact values, repeatable draws, and coverage."""

import random

import pytest

from draftwood.bench.statistics import rate, speedup, spread


def timings(rng, factor, prompts=30):
    """(tokens, seconds) per prompt of two ways, the second `factor` times slower, both subject to
    what makes a prompt slow."""
    ours, theirs = [], []
    for _ in range(prompts):
        slow = rng.lognormvariate(0.0, 1.0)
        ours.append((100.0, slow * rng.lognormvariate(0.0, 0.1)))
        theirs.append((100.0, factor * slow * rng.lognormvariate(0.0, 0.1)))
    return ours, theirs


def test_a_speedup_is_the_ratio_of_pooled_rates():
    ratio = speedup([(10, 1.0), (30, 3.0)], [(10, 2.0), (30, 6.0)], seed=0)
    assert ratio.value == pytest.approx(2.0)
    assert (ratio.low, ratio.high) == (pytest.approx(2.0), pytest.approx(2.0))


def test_texts_of_other_lengths_are_compared_by_rate():
    assert speedup([(5, 1.0)], [(10, 1.0)], seed=0).value == pytest.approx(0.5)


def test_one_prompt_has_no_interval():
    ratio = speedup([(10, 1.0)], [(10, 3.0)], seed=0)
    assert (ratio.low, ratio.high) == (None, None)


def test_the_seed_fixes_the_interval():
    ours, theirs = timings(random.Random(1), 2.0)
    assert speedup(ours, theirs, seed=4) == speedup(ours, theirs, seed=4)
    assert speedup(ours, theirs, seed=4) != speedup(ours, theirs, seed=5)


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    covered = 0
    for seed in range(100):
        ratio = speedup(*timings(random.Random(seed), 1.5), seed=seed)
        covered += ratio.low <= 1.5 <= ratio.high
    assert 85 <= covered <= 100


def test_pairing_takes_out_what_both_share():
    """Negative control: the same numbers with partners exchanged give a far wider interval."""
    ours, theirs = timings(random.Random(2), 2.0)
    paired, crossed = speedup(ours, theirs, seed=0), speedup(ours, theirs[::-1], seed=0)
    assert paired.value == pytest.approx(crossed.value)
    assert crossed.high - crossed.low > 4 * (paired.high - paired.low)


def test_what_is_not_paired_is_refused():
    with pytest.raises(ValueError, match="2 and 1 prompts"):
        speedup([(1, 1.0), (1, 1.0)], [(1, 1.0)], seed=0)


def test_a_rate_is_all_tokens_over_all_seconds():
    assert rate([10, 20], [1.0, 4.0], seed=0).value == pytest.approx(6.0)


def test_a_spread_is_the_median_and_quartiles():
    values = spread([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (values.low, values.median, values.high, values.count) == (2.0, 3.0, 4.0, 5)
    assert spread([]) is None
