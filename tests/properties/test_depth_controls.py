"""Faults that small trees and short texts do not show are rejected: negative controls."""

from typing import Any

import pytest
from attrs import evolve

from draftwood.core.errors import TestingError
from draftwood.plugins.trees.options import SampledOptions
from draftwood.testing import ToyPipeline

from . import depth_faults as faults

SEEDS = range(4)
TEMPERATURES = (1.0, 0.5, 1.5, 0.0)
MATCH = ToyPipeline("factorized", "best_first", "match")
CHAIN = ToyPipeline("factorized", "sampled-chain", "ratio")
IID = ToyPipeline("factorized", "sampled-iid", "multi_round")

FAULTS: dict[str, tuple[ToyPipeline, str, dict[str, Any]]] = {
    "deep bonus": (MATCH, "deep", {"verifier": faults.DeepBonus()}),
    "many children": (MATCH, "wide", {"verifier": faults.ManyChildren()}),
    "late rounds": (MATCH, "late", {"verifier": faults.LateRounds()}),
    "far positions": (MATCH, "late", {"verifier": faults.FarPositions()}),
    "last of equal tokens": (MATCH, "ties", {"verifier": faults.LastOfEqual()}),
    "deep nodes without processors": (MATCH, "deep", {"verifier": faults.DeepWithoutProcessors()}),
    "three equal siblings": (IID, "repeated", {"verifier": faults.TriplesOnce()}),
    "deep draws dropped": (CHAIN, "deep", {"tree": faults.DropsDeepUnlikely(SampledOptions())}),
}


def toys(base: ToyPipeline, shape: str) -> list[ToyPipeline]:
    return [
        evolve(base, shape=shape, seed=seed, temperature=TEMPERATURES[seed], penalty=seed % 2 == 1)
        for seed in SEEDS
    ]


@pytest.mark.covers("shallow-certificate")
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_outside_small_toys_is_rejected_by_its_shape(name: str) -> None:
    base, shape, parts = FAULTS[name]
    for toy in toys(base, "standard"):
        toy.check(**parts)
    errors = []
    for toy in toys(base, shape):
        toy.check()
        try:
            toy.check(**parts)
        except AssertionError as error:
            errors.append(str(error))
    assert errors
    assert "the first wrong prefix is" in errors[0]
    assert "decided in round" in errors[0]


@pytest.mark.covers("shallow-certificate", "shared-randomness")
def test_keys_that_repeat_after_16_positions_are_rejected_in_a_long_text() -> None:
    """Their enumerated distribution is right."""
    IID.check(verifier=faults.WrappedKeys())
    assert len(IID.decode(100)) == 100
    with pytest.raises(TestingError, match="made twice"):
        IID.decode(100, verifier=faults.WrappedKeys())


@pytest.mark.covers("shallow-certificate")
def test_the_deciding_path_of_a_deep_bias_is_deep() -> None:
    toy = evolve(MATCH, shape="deep")
    path = toy.compare(verifier=faults.DeepBonus()).path
    assert path is not None
    assert len(path.accepted) - 1 >= 3
