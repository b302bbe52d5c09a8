"""A run is its configuration, and writes over nothing that is not its own."""

import json
import signal
from pathlib import Path

import pytest
import torch
from training_file import training_file

from draftwood.core.errors import DraftwoodError
from draftwood.core.registry.loader import load_plugins
from draftwood.plugins.drafters.dflash.model import DFlashModel
from draftwood.training import train
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

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "one_step", stop)
        with pytest.raises(KeyboardInterrupt):
            train(path, set_options=["train.lr=0.5"], resume=False)
    state = torch.load(tmp_path / "work/drafter.pt", weights_only=True)
    assert state["step"] == 0
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
    assert "interrupted at step 3; saved in" in capsys.readouterr().out
    assert torch.load(tmp_path / "work/drafter.pt", weights_only=True)["step"] == 3
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
    with pytest.raises(DraftwoodError, match=r"drafter\.pt is a checkpoint of another drafter"):
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
