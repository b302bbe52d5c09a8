"""Enumeration follows every outcome once with its probability, and refuses a repeated key."""

import pytest
import torch

from draftwood.core.errors import TestingError
from draftwood.testing import Enumerating, outcomes

WEIGHTS = torch.tensor([0.5, 0.0, 0.25, 0.25], dtype=torch.float64)


def test_every_outcome_appears_once_with_its_probability() -> None:
    def experiment(rng: Enumerating) -> tuple[int, bool]:
        first = rng.categorical(WEIGHTS, 0)
        return first, first == 0 and rng.accept(0.25, 1)

    probabilities = {result: p for p, result, _ in outcomes(experiment)}
    assert probabilities == {
        (0, True): 0.125,
        (0, False): 0.375,
        (2, False): 0.25,
        (3, False): 0.25,
    }


def test_certain_outcomes_do_not_branch() -> None:
    def experiment(rng: Enumerating) -> tuple[bool, bool, int]:
        return rng.accept(0.0, 0), rng.accept(1.7, 1), rng.categorical(torch.tensor([0, 3]), 2)

    assert [(p, r) for p, r, _ in outcomes(experiment)] == [(1.0, (False, True, 1))]


@pytest.mark.covers("shared-randomness")
def test_one_key_used_twice_is_an_error() -> None:
    def experiment(rng: Enumerating) -> None:
        rng.stream("verify").accept(0.5, 3)
        rng.stream("verify").categorical(WEIGHTS, 3)

    with pytest.raises(TestingError, match="made twice"):
        list(outcomes(experiment))


def test_equal_keys_of_different_streams_are_different_draws() -> None:
    def experiment(rng: Enumerating) -> tuple[bool, bool]:
        return rng.stream("verify").accept(0.5, 3), rng.stream("draft").accept(0.5, 3)

    assert len(list(outcomes(experiment))) == 4
