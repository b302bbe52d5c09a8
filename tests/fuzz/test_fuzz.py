"""A few hundred of the fuzz's cases; `python -m tests.fuzz --cases 10000` runs the rest."""

import pytest

from tests.fuzz.cases import CASES, SLOW_CASES, run


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """A mutated name may look like one of the hub."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.mark.covers("mutated-input")
@pytest.mark.parametrize("kind", CASES, ids=lambda kind: kind.__name__)
def test_mutated_input_is_accepted_or_refused(kind, tmp_path):
    findings = {seed: run(kind, seed, tmp_path) for seed in range(40)}
    assert {seed: finding for seed, finding in findings.items() if finding} == {}


@pytest.mark.covers("mutated-input")
@pytest.mark.parametrize("kind", SLOW_CASES, ids=lambda kind: kind.__name__)
def test_mutated_checkpoint_is_loaded_or_refused(kind, tmp_path):
    findings = {seed: run(kind, seed, tmp_path) for seed in range(6)}
    assert {seed: finding for seed, finding in findings.items() if finding} == {}


def test_a_failure_is_reported_with_its_place(tmp_path):
    def broken(*_: object) -> None:
        raise KeyError("x")

    assert "KeyError: 'x' at " in (run(broken, 0, tmp_path) or "")
