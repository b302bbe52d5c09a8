"""A sample of `benchmarks/targets.py`, which tries every causal LM class of transformers."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).parents[2]
SAME = (
    "bert",
    "deepseek_v3",
    "falcon",
    "gemma3",
    "gemma4_text",
    "gpt_oss",
    "llama",
    "mixtral",
    "opt",
    "xglm",
)
REFUSED = {
    "bloom": "position_ids",
    "blt": "num_hidden_layers",
    "llama4_text": "chunked_attention",
    "mamba": "recurrent state",
}


@pytest.fixture(scope="module")
def targets() -> ModuleType:
    script = ROOT / "benchmarks" / "targets.py"
    if not script.is_file():
        pytest.skip("benchmarks/ is part of a checkout, not of an installation")
    spec = importlib.util.spec_from_file_location("targets", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.covers("other-text-by-architecture")
@pytest.mark.parametrize("model_type", SAME)
def test_a_tiny_model_of_the_type_keeps_its_text(targets: ModuleType, model_type: str) -> None:
    assert targets.outcome(model_type) == targets.Outcome(targets.SAME)


@pytest.mark.parametrize("model_type", list(REFUSED))
def test_a_type_without_a_way_back_is_refused(targets: ModuleType, model_type: str) -> None:
    outcome = targets.outcome(model_type)
    assert outcome.status == targets.REFUSED
    assert REFUSED[model_type] in outcome.reason


@pytest.mark.covers("other-text-by-architecture")
def test_a_model_that_ignores_the_tree_mask_is_a_fault(
    targets: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    from draftwood.core.hf import masks, target

    monkeypatch.setattr(target, "self_check", lambda *_: None)
    monkeypatch.setattr(masks, "full_mask", _causal_mask)
    outcome = targets.outcome("llama")
    assert outcome.status == targets.FAULT
    assert "other text from token" in outcome.reason


def _causal_mask(visible: torch.Tensor, length: int, dtype: torch.dtype) -> torch.Tensor:
    """Every node attends to all nodes before it, siblings included."""
    rows = visible.shape[0]
    hidden = torch.ones(rows, length + rows, dtype=torch.bool).triu(length + 1)
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill(hidden, -1e9)[None, None]


def test_the_page_lists_the_outcomes_without_a_fault(targets: ModuleType) -> None:
    page = (ROOT / "docs" / "reference" / "targets.md").read_text(encoding="utf-8")
    table = page.partition(targets.BEGIN)[2].partition(targets.END)[0]
    assert targets.FAULT not in table.partition("|")[2]
    rows = dict(line.split(" | ", 1) for line in table.splitlines() if line.startswith("| `"))
    for model_type in SAME:
        assert rows[f"| `{model_type}`"].count(targets.SAME) == 3
    for model_type in REFUSED:
        assert rows[f"| `{model_type}`"].count(targets.REFUSED) == 3


def test_a_process_past_its_time_or_memory_is_a_fault(
    targets: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "SECONDS", 0.2)
    assert "no outcome within" in targets.isolated("llama", lambda _: _wait()).reason
    assert "exit code" in targets.isolated("llama", lambda _: _end()).reason


def _wait() -> None:
    import time

    time.sleep(5)


def _end() -> None:
    import os

    os._exit(3)
