"""Damaged weights of every drafter that reads a folder are errors that name the file and tensor."""

import re
import shutil
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftwood.core.errors import CheckpointError
from draftwood.core.hf import load_target
from draftwood.plugins.drafters.common.model import DrafterModel
from draftwood.plugins.drafters.dblast.model import DBlastModel
from draftwood.plugins.drafters.dflash.model import DFlashModel
from draftwood.plugins.drafters.eagle3.model import Eagle3Model

FIXTURES = Path(__file__).parents[3] / "fixtures"
ASSETS = Path(str(files("draftwood"))) / "assets" / "tiny-python"
CHECKPOINTS: dict[str, tuple[type[DrafterModel], Path, str]] = {
    "dflash": (DFlashModel, FIXTURES / "zlab/dflash", "layers.1.mlp.up_proj.weight"),
    "dflash2": (DFlashModel, FIXTURES / "zlab/dflash2", "layers.1.mlp.up_proj.weight"),
    "speculators dflash": (
        DFlashModel,
        FIXTURES / "speculators/dflash",
        "layers.0.mlp.up_proj.weight",
    ),
    "dblast": (DBlastModel, ASSETS / "dblast", "branches.expand"),
    "eagle3": (Eagle3Model, FIXTURES / "speculators/eagle3", "layers.0.mlp.up_proj.weight"),
}
"""Of each drafter: its network, a folder, and the published name of a parameter of it."""

Weights = dict[str, torch.Tensor]


def _with_value(tensor: torch.Tensor, value: float) -> torch.Tensor:
    tensor.view(-1)[-1] = value
    return tensor


def _prefixed(weights: Weights) -> Weights:
    return {f"model.{name}": tensor for name, tensor in weights.items()}


def _renamed(weights: Weights, name: str) -> Weights:
    return {f"{key}_old" if key == name else key: tensor for key, tensor in weights.items()}


DAMAGES: dict[str, tuple[Callable[[Weights, str], Weights], str]] = {
    "nan": (lambda w, n: w | {n: _with_value(w[n], float("nan"))}, "NAME has NaN or infinite"),
    "infinite": (lambda w, n: w | {n: _with_value(w[n], -torch.inf)}, "NAME has NaN or infinite"),
    "missing": (lambda w, n: {k: t for k, t in w.items() if k != n}, "missing: NAME"),
    "renamed": (_renamed, "missing: NAME\n.*unexpected: NAME_old"),
    "prefixed": (
        lambda w, _: _prefixed(w),
        "unexpected: model.NAME|needs its own lm_head.weight and d2t",
    ),
    "misshapen": (lambda w, n: w | {n: w[n][:-1].clone()}, "NAME is .*, and config.json makes it"),
    "transposed": (
        lambda w, n: w | {n: w[n].transpose(0, 1).contiguous()},
        "NAME is .*, and config.json makes it",
    ),
}


def copied(source: Path, folder: Path) -> Path:
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("expected*"))
    return folder


@pytest.mark.covers("damaged-checkpoint")
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_damaged_tensors_are_located_errors(kind: str, damage: str, tmp_path: Path) -> None:
    model, source, name = CHECKPOINTS[kind]
    folder = copied(source, tmp_path / "checkpoint")
    model.from_folder(folder)  # negative control
    change, message = DAMAGES[damage]
    weights = change(load_file(folder / "model.safetensors"), name)
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(CheckpointError) as caught:
        model.from_folder(folder)
    assert str(folder) in str(caught.value)
    assert re.search(message.replace("NAME", re.escape(name)), str(caught.value), re.DOTALL)


@pytest.mark.covers("damaged-checkpoint")
@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_truncated_files_are_located_errors(kind: str, tmp_path: Path) -> None:
    model, source, _ = CHECKPOINTS[kind]
    folder = copied(source, tmp_path / "checkpoint")
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="it was truncated") as caught:
        model.from_folder(folder)
    assert str(path) in str(caught.value)


@pytest.mark.covers("damaged-checkpoint")
def test_weights_of_a_draft_model_that_are_not_finite_are_named(tmp_path: Path) -> None:
    """`draft_model` loads a language model with the function that loads targets."""
    folder = copied(FIXTURES / "zlab/target", tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    weights[name] = _with_value(weights[name], float("nan"))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=re.escape(name)):
        load_target(folder)
