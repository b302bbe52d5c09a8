"""Points: continuations of a text, each trusted less than the one before."""

import math

import pytest

from draftwood.core.options import Sampling
from draftwood.core.proposals import LookupPaths


def chances(*paths: tuple[int, ...]) -> list[tuple[int, float]]:
    points = LookupPaths(paths, Sampling(1.0), 9, confidence=0.6)
    return [(token, math.exp(score)) for token, score in points.following(())]


def test_each_path_counts_half_as_much_as_the_one_before() -> None:
    tokens, shares = zip(*chances((5,), (2,), (7,)), strict=True)
    assert tokens == (5, 2, 7)
    assert shares == pytest.approx([0.6 * part / 7 for part in (4, 2, 1)])


def test_paths_that_agree_are_trusted_together() -> None:
    found = chances((5,), (2,), (7,), (2,))
    assert [token for token, _ in found] == [5, 2, 7]
    assert [share for _, share in found] == pytest.approx([0.6 * part / 15 for part in (8, 5, 2)])
