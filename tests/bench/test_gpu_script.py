"""The script that measures kernels on a GPU: what can be known of it without one."""

import importlib
import json
import subprocess
import sys
import time
from pathlib import Path

import attrs
import pytest
import torch

FOLDER = Path(__file__).parents[2] / "benchmarks" / "gpu"

pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="benchmarks/ is part of a checkout, not of an installation"
)


@pytest.fixture
def script(monkeypatch):
    """Its modules by name; they are siblings, not a package."""
    monkeypatch.syspath_prepend(str(FOLDER))
    names = {path.stem for path in FOLDER.glob("*.py")}
    before = names & set(sys.modules)
    assert not before, "a module of another name is in the way"
    yield importlib.import_module
    for name in names:
        sys.modules.pop(name, None)


def clock(script, seconds=60.0):
    return script("clocks").Clock(torch.device("cpu"), time.monotonic() + seconds)


def test_a_dry_run_measures_attention_and_writes_what_it_prints(tmp_path):
    pytest.importorskip("triton")
    out = tmp_path / "gpu.json"
    command = [sys.executable, str(FOLDER / "run.py"), "--dry-run", "--only", "attention"]
    done = subprocess.run(
        [*command, "--out", str(out)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    part = report["parts"]["attention"]
    assert part["error"] is None
    tree, plain = part["rows"]
    names = {"tree attention", "sdpa, repeated heads", "sdpa, grouped heads"}
    assert set(tree["times"]) == names | {"flex-attention"}
    assert set(plain["times"]) == names
    for row in part["rows"]:
        assert row["wrong"] is None
        assert all(timed["seconds"] > 0 for timed in row["times"].values())
    title, header, *lines = done.stdout.splitlines()[1:]
    assert title.startswith("DRY RUN")
    assert header.split() == ["part", "case", "contestant", "ms", "quartiles", "remark"]
    assert len(lines) == 4 + 1 + 3 + 1
    assert not list(tmp_path.glob(".gpu.json*"))


def test_without_a_gpu_it_says_what_works(tmp_path, script, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["run.py"])
    with pytest.raises(SystemExit) as ended:
        script("run").main()
    assert ended.value.code == 2
    assert "--dry-run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("body", "seconds", "error"),
    [
        ("raise ValueError('no such device')", 90, "ValueError: no such device"),
        ("import os; os._exit(7)", 90, "exit code 7"),
        ("import time; time.sleep(600)", 3, "stopped after 3 s"),
        ("pass", 90, None),
    ],
)
def test_a_part_that_fails_keeps_what_it_had_measured(
    tmp_path, script, monkeypatch, body, seconds, error
):
    """Each ends its process another way: an exception, a crash, its time, and well."""
    run = script("run")
    other = tmp_path / "gpu"
    other.mkdir()
    light = (FOLDER / "run.py").read_text().replace("= machine()", "= {}")
    (other / "run.py").write_text(light)
    (other / "testing.py").write_text(
        f"def measure(add, end, dry):\n    add({{'case': 1}}); {body}\n"
    )
    monkeypatch.setattr(run, "HERE", other)
    found = run.supervised("kernels", seconds, True)
    if seconds > 3 or found["rows"]:  # else it was stopped before it had begun
        assert found["rows"] == [{"case": 1}]
    assert (found["error"] is None) is (error is None)
    assert (error or "") in (found["error"] or "")


def test_contestants_take_turns_and_one_that_fails_is_left_out(script):
    calls = []

    def broken():
        raise RuntimeError("no kernel for this")

    contestants = {name: lambda name=name: calls.append(name) for name in "ab"}
    found = clock(script).device_times({**contestants, "c": broken}, 3)
    assert calls == ["a", "b"] + ["a", "b"] * 3  # each is warmed once
    assert found["a"].repeats == 3
    assert found["c"].error == "RuntimeError: no kernel for this"
    assert found["c"].seconds is None


def test_one_repeat_is_made_when_the_time_is_over(script):
    found = clock(script, seconds=-1.0).device_times({"a": lambda: None}, 30)
    assert found["a"].repeats == 1


def test_the_median_is_not_moved_by_one_repeat(script):
    timed = script("clocks").summary([1.0, 1.1, 0.9, 50.0, 1.0], "events")
    assert timed.seconds == 1.0
    assert timed.low <= timed.seconds <= timed.high < 50.0


def test_attention_moves_each_key_once_and_multiplies_each_pair_twice(script):
    pytest.importorskip("triton")
    shape = script("attending").Shape("m", heads=4, kv_heads=2, dim=8, nodes=1, context=10)
    assert shape.moved(2) == 2 * (2 * 2 * 12 * 8 + 2 * 4 * 2 * 8)
    assert shape.flops == 2 * 2 * (4 * 8) * 2 * 12


def test_a_wrong_kernel_is_noticed(script, monkeypatch):
    pytest.importorskip("triton")
    attending = script("attending")
    layer = attending.Layer(attending.DRY[0], torch.device("cpu"), torch.float32)
    right = layer.sdpa(layer.dense_mask(), repeat=True)
    times = {"tree attention": script("clocks").Timed(1.0)}

    def said(out):
        contestants = {"tree attention": lambda: out, "sdpa, repeated heads": lambda: right}
        return attending._wrong(contestants, times, 1e-4)

    assert said(right) is None
    assert "differs" in said(right + 1e-3)
    assert "differs" in said(right * float("nan"))
    without = torch.zeros(1, 1, layer.rows, layer.columns)
    assert "differs" in said(layer.sdpa(without, repeat=True))  # a tree that sees all of itself


@pytest.mark.parametrize("nodes", [0, 1, 6, 64, 256])
def test_trees_are_trees_that_begin_with_a_chain(script, nodes):
    trees = script("draft_trees")
    tree = trees.tree_of(nodes, 1000).validate()
    assert tree.nodes == nodes
    assert max(tree.depth_list) <= trees.DEEPEST
    assert trees.straight(tree) >= min(nodes // 3, trees.DEEPEST)


def test_outcomes_are_read_with_workers_and_without(script):
    text = """
tests/a/test_b.py::test_one PASSED [ 50%]
[gw1] [ 75%] FAILED tests/a/test_b.py::test_two[x-1]
tests/a/test_b.py::test_three SKIPPED (no reason) [100%]
tests/a/test_b.py::test_four
"""
    assert script("testing").outcomes_of(text) == {
        "tests/a/test_b.py::test_one": "PASSED",
        "tests/a/test_b.py::test_two[x-1]": "FAILED",
        "tests/a/test_b.py::test_three": "SKIPPED",
    }


def test_the_files_of_kernel_tests_exist(script):
    testing = script("testing")
    for name in (*testing.KERNELS, *testing.PIPELINES, *testing.DRY):
        assert (testing.ROOT / name).is_file()


def test_a_dry_run_runs_the_tests_of_compaction(script):
    pytest.importorskip("triton")
    rows = []
    script("testing").measure(rows.append, time.monotonic() + 60, dry=True)
    assert rows[0]["case"] == "test_compaction.py"
    assert rows[0]["passed"] > 3


def test_real_models_have_the_published_numbers_of_weights(script):
    rounds = script("rounds")
    published = {"Qwen3-8B": 8.19e9, "Qwen3-4B": 4.02e9, "Qwen3-0.6B": 0.596e9}
    for model in rounds.REAL.models:
        one, two = (weights_of(rounds, attrs.evolve(model, layers=layers)) for layers in (1, 2))
        weights = one + (model.layers - 1) * (two - one)
        assert weights == pytest.approx(published[model.name], rel=0.01)
        drafter = model.drafter_config(1024)
        assert max(drafter.target_layer_ids) < model.layers
        assert len(drafter.target_layer_ids) == 5


def weights_of(rounds, model):
    with torch.device("meta"):
        network = rounds.AutoModelForCausalLM.from_config(model.config(1024))
    return sum(weight.numel() for weight in network.parameters())
