"""A run is its configuration, and writes over nothing that is not its own."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from training_file import training_file

from draftwood.core.errors import CheckpointError, DraftwoodError
from draftwood.core.registry.loader import load_plugins
from draftwood.plugins.drafters.dflash.model import DFlashModel
from draftwood.training import train
from draftwood.training.blocks import TrainableBlocks
from draftwood.training.export import replace_export
from draftwood.training.inherited import embedding_scale
from draftwood.training.trainer import Trainer


@pytest.fixture
def path(tmp_path, target_folder):
    return training_file(tmp_path, target_folder)


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.covers("train-overwrites")
def test_export_into_the_targets_folder_is_refused_before_the_first_step(
    path, tmp_path, target_folder
):
    before = contents(target_folder)
    with pytest.raises(DraftwoodError, match="target's own folder"):
        train(path, set_options=[f"export={target_folder}"])
    assert contents(target_folder) == before
    assert not (tmp_path / "work").exists()


@pytest.mark.covers("train-overwrites")
@pytest.mark.parametrize("name", ["notes.txt", "model.safetensors"])
def test_export_into_a_folder_with_foreign_files_is_refused(path, tmp_path, name):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text("somebody's")
    with pytest.raises(DraftwoodError, match=f"not an earlier export of this run.*{name}"):
        train(path)
    assert (tmp_path / "out" / name).read_text() == "somebody's"


@pytest.mark.covers("train-overwrites")
def test_a_run_replaces_its_own_earlier_export_and_leaves_no_partial_folder(path, tmp_path):
    train(path, set_options=["train.steps=3"])
    first = contents(tmp_path / "out")
    train(path, set_options=["train.steps=6"])
    assert contents(tmp_path / "out").keys() == first.keys()
    assert contents(tmp_path / "out") != first
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith("out")) == ["out"]


@pytest.mark.covers("train-changed-configuration")
def test_a_finished_run_is_not_continued_under_another_configuration(path, tmp_path):
    train(path)
    before = contents(tmp_path / "out")
    with pytest.raises(DraftwoodError) as caught:
        train(path, set_options=["train.lr=0.5", "drafter.intermediate=64"])
    message = str(caught.value)
    assert "train.lr: 0.02 -> 0.5" in message
    assert "drafter.intermediate: 48 -> 64" in message
    assert "--restart" in message
    assert contents(tmp_path / "out") == before


@pytest.mark.covers("train-changed-configuration")
def test_restart_begins_the_run_of_the_new_configuration(path, tmp_path):
    train(path)
    train(path, set_options=["drafter.intermediate=64"], resume=False)
    model = DFlashModel.from_folder(tmp_path / "out")
    assert model.config.intermediate_size == 64


@pytest.mark.covers("train-changed-configuration")
def test_an_interrupted_restart_never_exports_the_earlier_run(path, tmp_path, monkeypatch):
    train(path)
    before = contents(tmp_path / "out")

    step = Trainer.one_step

    def stop(self, fraction):
        signal.raise_signal(signal.SIGINT)
        return step(self, fraction)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "one_step", stop)
        with pytest.raises(KeyboardInterrupt):
            train(path, set_options=["train.lr=0.5"], resume=False)
    state = torch.load(tmp_path / "work/drafter.pt", weights_only=True)
    assert state["step"] == 1
    assert contents(tmp_path / "out") == before
    train(path, set_options=["train.lr=0.5"])
    report = json.loads((tmp_path / "work/drafter-report.json").read_text())
    assert report["steps"] == 6
    assert contents(tmp_path / "out") != before


@pytest.mark.covers("train-interrupted")
def test_an_interrupt_saves_a_checkpoint_and_the_same_command_continues(
    path, tmp_path, monkeypatch, capsys
):
    steps, step = [], Trainer.one_step

    def interrupted(self, fraction):
        if len(steps) == 3:
            signal.raise_signal(signal.SIGINT)
        steps.append(self.step)
        return step(self, fraction)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "one_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(path)
    assert "interrupted at step 4; saved in" in capsys.readouterr().out
    assert torch.load(tmp_path / "work/drafter.pt", weights_only=True)["step"] == 4
    train(path)
    report = json.loads((tmp_path / "work/drafter-report.json").read_text())
    assert report["steps"] == 6


@pytest.mark.covers("train-changed-configuration")
def test_a_checkpoint_of_another_shape_is_named(path, tmp_path):
    train(path)
    checkpoint = tmp_path / "work/drafter.pt"
    state = torch.load(checkpoint, weights_only=True)
    name = next(iter(state["model"]))
    state["model"][name] = torch.zeros(3, 5)
    torch.save(state, checkpoint)
    with pytest.raises(
        DraftwoodError, match=r"drafter\.pt is damaged or a checkpoint of another drafter"
    ):
        train(path)


@pytest.mark.covers("train-without-labels")
def test_answers_without_a_token_to_learn_are_refused(path, monkeypatch):
    from draftwood.training import run

    made = run.sample

    def silent(*arguments, **options):
        samples = made(*arguments, **options)
        samples.ends[:] = samples.starts
        return samples

    monkeypatch.setattr(run, "sample", silent)
    with pytest.raises(DraftwoodError, match="no token to learn from"):
        train(path)


THIRD_PARTY = '''
"""An algorithm of a third party: a block drafter under its own name."""

from typing import Literal

from attrs import field, frozen

from draftwood import TrainablePlugin, hookimpl
from draftwood.training.config import DFlashShape, DFlashTraining

made = []


@frozen
class Shape(DFlashShape):
    """Attributes:
        algorithm: ours.
    """

    algorithm: Literal["ours"] = "ours"


@frozen(kw_only=True)
class Training(DFlashTraining):
    """Attributes:
        drafter: ours.
    """

    drafter: Shape


def build(config, target, tokenizer):
    from draftwood.training.blocks import TrainableBlocks

    made.append(config)
    return TrainableBlocks.of(config, target, tokenizer)


@hookimpl
def draftwood_register_trainables():
    yield TrainablePlugin("ours", "a block drafter", Training, "ours_training:build")
'''


def test_a_third_partys_algorithm_trains(path, tmp_path, monkeypatch):
    site = tmp_path / "site"
    info = site / "ours_training-0.2.dist-info"
    info.mkdir(parents=True)
    (site / "ours_training.py").write_text(THIRD_PARTY)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ours-training\nVersion: 0.2\n")
    (info / "entry_points.txt").write_text("[draftwood]\nours = ours_training\n")
    monkeypatch.syspath_prepend(str(site))
    registry = load_plugins()
    path.write_text(path.read_text().replace("drafter: {", "drafter: {algorithm: ours, "))
    folder = train(path, registry=registry)
    import ours_training

    assert len(ours_training.made) == 1
    assert DFlashModel.from_folder(folder).config.num_target_layers == 3


@pytest.mark.covers("train-changed-configuration")
def test_a_checkpoint_without_a_recorded_configuration_is_refused(path, tmp_path):
    train(path)
    (tmp_path / "work/run.json").unlink()
    (tmp_path / "work/drafter-report.json").unlink()
    with pytest.raises(DraftwoodError, match=r"not recorded.*--restart, or set another work"):
        train(path, set_options=[f"export={tmp_path / 'other'}"])
    train(path, set_options=[f"export={tmp_path / 'other'}"], resume=False)
    assert (tmp_path / "other/config.json").exists()


def write_new(folder: Path) -> None:
    folder.mkdir()
    (folder / "config.json").write_text("new")


@pytest.mark.covers("train-overwrites")
@pytest.mark.parametrize("failing", ["write", "check", "rename"])
def test_a_failed_export_leaves_the_earlier_one_and_nothing_beside_it(
    tmp_path, monkeypatch, failing
):
    out, rename = tmp_path / "out", Path.rename
    out.mkdir()
    (out / "config.json").write_text("earlier")
    for neighbour in ("out.partial", "out.earlier"):
        (tmp_path / neighbour).mkdir()

    def fail(*_):
        raise OSError("disk full")

    def rename_but_new(self, folder):
        return fail() if self.name == "new" else rename(self, folder)

    if failing == "rename":
        monkeypatch.setattr(Path, "rename", rename_but_new)
    with pytest.raises(OSError, match="disk full"):
        replace_export(
            fail if failing == "write" else write_new,
            out,
            fail if failing == "check" else lambda _: None,
        )
    assert (out / "config.json").read_text() == "earlier"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "out.earlier", "out.partial"]


@pytest.mark.covers("train-overwrites")
def test_a_file_that_appears_in_the_export_folder_while_training_is_kept(
    path, tmp_path, monkeypatch
):
    step = Trainer.one_step

    def one_step(self, fraction):
        (tmp_path / "out").mkdir(exist_ok=True)
        (tmp_path / "out/notes.txt").write_text("somebody's")
        return step(self, fraction)

    monkeypatch.setattr(Trainer, "one_step", one_step)
    with pytest.raises(DraftwoodError, match=r"not an earlier export of this run.*notes\.txt"):
        train(path)
    assert (tmp_path / "out/notes.txt").read_text() == "somebody's"


@pytest.mark.covers("train-interrupted")
def test_an_interrupt_within_a_step_takes_effect_after_it(path, tmp_path, monkeypatch):
    train(path, set_options=["train.steps=2", f"export={tmp_path / 'two'}"])
    whole = torch.load(tmp_path / "work/drafter.pt", weights_only=True)["model"]
    loss, steps = TrainableBlocks.loss, []

    def interrupted(self, *batch):
        steps.append(1)
        if len(steps) == 2:
            signal.raise_signal(signal.SIGINT)
        return loss(self, *batch)

    monkeypatch.setattr(TrainableBlocks, "loss", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(path, set_options=["train.steps=2"], resume=False)
    state = torch.load(tmp_path / "work/drafter.pt", weights_only=True)
    assert state["step"] == 2
    for name, weight in whole.items():
        assert torch.equal(weight, state["model"][name]), name


@pytest.mark.covers("train-interrupted")
def test_a_second_interrupt_within_a_step_saves_nothing_half_applied(
    path, tmp_path, monkeypatch, capsys
):
    def interrupted(*_):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(TrainableBlocks, "loss", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(path)
    assert not (tmp_path / "work/drafter.pt").exists()
    assert "interrupted within step 0, which is not saved" in capsys.readouterr().out


INTERRUPTED_IN_STEP_3 = """
import os, signal, sys
from draftwood.cli import execute
from draftwood.training.trainer import Trainer

step = Trainer.one_step

def one_step(self, fraction):
    if self.step == 3 and os.environ["RANK"] in sys.argv[2]:
        signal.raise_signal(signal.SIGINT)
    return step(self, fraction)

Trainer.one_step = one_step
sys.exit(execute(["train", sys.argv[1]]))
"""


@pytest.mark.covers("train-interrupted")
@pytest.mark.parametrize("ranks", ["0", "01"])
def test_an_interrupt_of_the_first_process_stops_all_after_the_same_step(path, tmp_path, ranks):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", INTERRUPTED_IN_STEP_3, str(path), ranks],
            env={**os.environ, **shared, "RANK": rank, "LOCAL_RANK": rank, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [130, 130]
    assert "interrupted at step 4; saved" in outputs[0]
    assert torch.load(tmp_path / "work/drafter.pt", weights_only=True)["step"] == 4
    assert not (tmp_path / "out").exists()


@pytest.mark.covers("train-interrupted")
def test_an_interrupt_during_features_says_that_finished_parts_are_kept(
    path, tmp_path, monkeypatch, capsys
):
    from draftwood.training import run

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run, "extract", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(path)
    assert "finished parts of samples and features are kept" in capsys.readouterr().out
    assert (tmp_path / "work/samples-train.npz").exists()
    train(path)


@pytest.mark.covers("train-changed-configuration")
@pytest.mark.parametrize("damage", ["shape", "count", "missing", "truncated"])
def test_a_checkpoint_with_damaged_momentum_is_named(path, tmp_path, damage):
    train(path)
    checkpoint = tmp_path / "work/drafter.pt"
    state = torch.load(checkpoint, weights_only=True)
    if damage == "shape":
        state["muon"][0] = torch.zeros(1, 2, 3)
    elif damage == "count":
        state["muon"].pop()
    elif damage == "missing":
        del state["muon"]
    torch.save(state, checkpoint)
    if damage == "truncated":
        checkpoint.write_bytes(checkpoint.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=r"(?s)drafter\.pt is damaged or.*--restart"):
        train(path)


@pytest.mark.covers("train-without-labels")
@pytest.mark.parametrize("split", ["train", "heldout"])
@pytest.mark.parametrize("reason", ["ends with its first token", "leave one token"])
def test_text_without_labels_is_refused_before_features(path, monkeypatch, split, reason):
    from draftwood.training import run

    made = run.sample

    def without_labels(*arguments, title, **options):
        samples = made(*arguments, title=title, **options)
        if title.endswith(split):
            if reason.startswith("leave"):
                samples.starts[:] = samples.tokens.shape[1] - 1
                samples.ends[:] = samples.tokens.shape[1]
            else:
                samples.ends[:] = samples.starts + 1
        return samples

    monkeypatch.setattr(run, "sample", without_labels)
    monkeypatch.setattr(run, "extract", None)
    with pytest.raises(DraftwoodError, match=f"no token to learn from: .*{reason}"):
        train(path)


def test_the_embedding_scale_of_packed_rows_is_that_of_the_module():
    class Packed(torch.nn.Embedding):
        """Rows of int8 numbers with one factor, scaled as Gemma's are."""

        embed_scale = 4.0

        def __init__(self):
            super().__init__(9, 8)
            packed = torch.randint(-127, 127, (9, 8), dtype=torch.int8)
            self.weight = torch.nn.Parameter(packed, requires_grad=False)

        def forward(self, ids):
            return self.weight[ids].float() * 0.01 * self.embed_scale

    class Model:
        def get_input_embeddings(self):
            return Packed()

    assert embedding_scale(Model()) == pytest.approx(4.0)


def test_the_printed_pipeline_uses_a_drafter_that_exists(tmp_path):
    from draftwood.cli.train import _finished
    from draftwood.core.registry.plugin import Kind

    registry = load_plugins()
    for algorithm in ("dflash", "dblast", "eagle3"):
        text = _finished(registry, algorithm, "builtin", tmp_path / "a: folder")
        pipeline = yaml.safe_load(text[text.index("target:") :])
        folder = str(tmp_path / "a: folder")
        assert pipeline["drafter"] == {"use": algorithm, "checkpoint": folder}
        assert registry.get(Kind.DRAFTER, algorithm)
    text = _finished(registry, "ours", "builtin", tmp_path / "out")
    assert str(tmp_path / "out") in text
    assert "use:" not in text
