"""The commands `ablate` and `tune-zt` on the bundled target, with untrained branches."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from draftwood.core.assets import resolve
from draftwood.core.config.pipeline import load_config
from draftwood.plugins.drafters.dblast.model import DBlastModel
from studies.dblast import ablate, tune_zt

Study = Callable[..., Any]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = Path(resolve("builtin", "independent"))
    folder = tmp_path_factory.mktemp("dblast") / "checkpoint"
    shutil.copytree(source, folder)
    model = DBlastModel.from_folder(source).with_branches(2, 4, seed=1)
    assert model.branches is not None
    torch.nn.init.normal_(
        model.branches.expand, std=0.2, generator=torch.Generator().manual_seed(2)
    )
    data = json.loads((folder / "config.json").read_text())
    data["dblast_config"] = model.config.section()
    (folder / "config.json").write_text(json.dumps(data))
    save_file(model.published_state(), folder / "model.safetensors")
    return folder


def test_ablate_writes_tables_and_numbers(study: Study, checkpoint: Path, tmp_path: Path) -> None:
    ran = study(
        ablate.command, "--dblast", str(checkpoint), "--prompts", "builtin:code",
        "--limit", "2", "--tokens", "24", "--temperature", "1", "--filters", "20:0.8",
        "--draws", "1", "--out", str(tmp_path / "out"), "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    result = json.loads(ran.out)
    assert set(result) == {key for key in ablate.JSON if "." not in key}
    (cell,) = result["cells"]
    assert (cell["title"], cell["prompts"]) == ("T = 1, top-k 20 + top-p 0.8", 2)
    assert json.loads((tmp_path / "out/dblast.json").read_text()) == result
    assert "| BASTION over DBlast | match |" in (tmp_path / "out/dblast.md").read_text()


def test_ablate_refuses_texts_too_short_for_a_draft(study: Study, checkpoint: Path) -> None:
    ran = study(
        ablate.command, "--dblast", str(checkpoint), "--prompts", "builtin:code",
        "--limit", "1", "--tokens", "8", "--temperature", "1", "--filters", "none",
    )  # fmt: skip
    assert ran.code == 2
    assert "raise --tokens" in ran.err


@pytest.mark.parametrize("value", ["20", "a:0.5", "0:0.5", "20:1.5", ":"])
def test_malformed_filters_are_usage_errors(study: Study, value: str) -> None:
    ran = study(ablate.command, "--filters", value)
    assert ran.code == 2
    assert "TOP_K:TOP_P" in ran.err


def document(checkpoint: Path | str, tmp_path: Path, use: str = "dblast") -> str:
    path = tmp_path / "pipeline.yaml"
    path.write_text(
        "target: {model: builtin}\n"
        f"drafter: {{use: {use}, checkpoint: {checkpoint}}}\n"
        f"tree: {{use: {'lottery' if use == 'dblast' else 'sampled'}}}\n"
        "controller: {use: fixed, nodes: 9}\n"
        "verifier: {use: ratio}\n"
        "runtime: {dtype: float32}\n"
    )
    return str(path)


def test_tune_zt_prints_a_valid_option_and_stores_it_with_write(
    study: Study, checkpoint: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "mine"
    shutil.copytree(checkpoint, folder)
    ran = study(
        tune_zt.command, document(folder, tmp_path), "--prompts", "builtin:code", "--limit", "2",
        "--tokens", "20", "--temperature", "1.5,1", "--grid", "0,1,3", "--write", "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    result = json.loads(ran.out)
    assert set(result) == {key for key in tune_zt.JSON if "." not in key}
    assert [pair[0] for pair in result["prior_temperatures"]] == [1.0, 1.5]
    data = json.loads((folder / "config.json").read_text())
    assert data["dblast_config"] == {
        "branches": 2,
        "rank": 4,
        "prior_temperatures": result["prior_temperatures"],
    }
    settings = [f"drafter.prior_temperature={json.dumps(result['prior_temperatures'])}"]
    load_config(document(folder, tmp_path), settings)


def test_tune_zt_refuses_drafters_without_a_prior(study: Study, tmp_path: Path) -> None:
    ran = study(tune_zt.command, document("builtin", tmp_path, "dflash"))
    assert ran.code == 2
    assert "only mixtures have a prior" in ran.err


def test_ablate_without_matplotlib_writes_numbers_and_names_the_extra(
    study: Study, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    ran = study(
        ablate.command, "--dblast", str(checkpoint), "--prompts", "builtin:code", "--limit", "1",
        "--tokens", "24", "--temperature", "1", "--filters", "none", "--draws", "1",
        "--out", str(tmp_path),
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert "pip install 'draftwood[plots]'" in ran.err
    assert {path.name for path in tmp_path.iterdir()} == {"dblast.json", "dblast.md"}
