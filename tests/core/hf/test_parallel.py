"""A target that several processes hold decodes like one that a single process holds."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import draftwood
from draftwood.core import processes
from draftwood.core.errors import ConfigError

SCRIPT = Path(__file__).with_name("decoding_together.py")
needs_accelerate = pytest.mark.skipif(
    find_spec("accelerate") is None, reason="accelerate is not installed"
)


def ran(folder: Path, *launcher: str, alone: bool = False) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DRAFTWOOD_CACHE": str(folder / "cache")}
    command = [sys.executable, *launcher, str(SCRIPT), str(folder), *["alone"] * alone]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=580, env=environment, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_accelerate
@pytest.mark.slow
def test_two_processes_with_a_split_target_give_the_text_of_one(
    tmp_path: Path,
) -> None:
    """In float64, with budgets that follow clocks which run differently in the two."""
    (tmp_path / "one").mkdir()
    ran(tmp_path / "one", alone=True)
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    ran(tmp_path, *launcher)
    one = json.loads((tmp_path / "one" / "0.json").read_text())
    two = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert two[0] == two[1]  # budgets and the seed that nobody gave included
    assert one["split"] == []
    assert any("mlp" in name for name in two[0]["split"])
    assert two[0]["greedy"] == one["greedy"]
    assert two[0]["timed"] == one["timed"] == one["greedy"]
    assert two[0]["accepted"] == one["accepted"] > 0
    assert any(two[0]["budgets"])
    assert two[0]["seed"] != one["seed"]  # negative control: what is not agreed on differs


def test_one_process_is_the_same_on_all_ranks() -> None:
    assert not processes.is_distributed()
    assert processes.broadcast_from_rank0([1.5, 2.0]) == [1.5, 2.0]
    assert processes.broadcast_from_rank0([2**62 + 1]) == [2**62 + 1]
    assert processes.same_on_all_ranks([1, 2, 3])
    assert processes.now() <= processes.now()


@pytest.mark.parametrize(
    ("parallel", "installed", "message"),
    [
        ("tensor", True, "started alone"),
        ("tensor", False, "accelerate, which is not installed"),
        ("layers", False, "accelerate, which is not installed"),
    ],
)
def test_missing_needs_of_parallel_decoding_are_refused_before_loading(
    parallel: str, installed: bool, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftwood.core.hf.parallel.find_spec", lambda name: installed or None)
    with pytest.raises(ConfigError, match=message) as caught:
        draftwood.load_pipeline("plain", [f"runtime.parallel={parallel}"])
    assert "runtime.parallel" in str(caught.value)


@needs_accelerate
def test_a_target_that_accelerate_placed_decodes_like_one_that_was_moved() -> None:
    """On a machine without GPUs everything lands on the CPU: hooks and all, but in one place."""
    settings = ["runtime.dtype=float32", "runtime.threads=1"]
    texts: list[Any] = []
    for parallel in ("none", "layers"):
        pipeline = draftwood.load_pipeline("tree-8", [*settings, f"runtime.parallel={parallel}"])
        texts.append(pipeline.generate("import os\n", max_new_tokens=8).tokens)
    assert texts[0] == texts[1]
