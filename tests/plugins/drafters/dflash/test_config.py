"""The causal flag under its names, and heads that resemble DFlash's and are something else."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from draftwood.core.errors import CheckpointError
from draftwood.plugins.drafters.dflash.config import DFlashConfig
from draftwood.plugins.drafters.dflash.model import DFlashModel
from draftwood.plugins.drafters.formats.describe import describe
from draftwood.training.export import as_published

FIXTURES = Path(__file__).parents[3] / "fixtures"


def config(layout: str = "zlab/dflash") -> dict[str, Any]:
    data: dict[str, Any] = json.loads((FIXTURES / layout / "config.json").read_text())
    return data


def with_keys(layout: str, inner: bool, keys: dict[str, Any]) -> dict[str, Any]:
    """The config of a fixture with keys added to its `dflash_config` or at the top level."""
    data = config(layout)
    (data["dflash_config"] if inner else data).update(keys)
    return data


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize("inner", [True, False], ids=["dflash_config", "top level"])
@pytest.mark.parametrize("key", ["is_causal", "causal_head", "causal"])
def test_the_causal_flag_is_read_under_each_name(key: str, inner: bool, value: bool) -> None:
    data = with_keys("zlab/dflash", inner, {key: value})
    assert DFlashConfig.from_mapping(data).causal == (value, value)


def test_the_flag_applies_to_sliding_layers_too() -> None:
    sliding = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4}
    data = with_keys("zlab/dflash", False, sliding)
    assert DFlashConfig.from_mapping(data).causal == (True, False)
    assert DFlashConfig.from_mapping(data | {"causal": False}).causal == (False, False)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"final_logit_softcapping": 30.0, "output_multiplier": 0.5},
        {"layer_types": ["sliding_attention"] * 2, "sliding_window": 4, "causal_head": False},
        {"target_hidden_size": 32},
    ],
)
def test_exported_configs_mean_the_same_drafter(change: dict[str, Any]) -> None:
    """A trained JetSpec head is exported as a causal head, with its scales."""
    data = config("heads/jetspec")
    data["dflash_config"].update(change)
    read = DFlashConfig.from_mapping(data)
    assert DFlashConfig.from_mapping(as_published(read, torch.float32)) == read


@pytest.mark.parametrize("inner", [True, False])
@pytest.mark.parametrize("key", ["is_causal", "causal"])
def test_names_of_the_causal_flag_that_disagree_are_refused(key: str, inner: bool) -> None:
    data = with_keys("heads/jetspec", inner, {key: False})
    with pytest.raises(CheckpointError, match="disagrees with") as caught:
        DFlashConfig.from_mapping(data, "here/config.json")
    assert str(caught.value).startswith("here/config.json: ")
    agreeing = with_keys("heads/jetspec", inner, {key: True})
    assert DFlashConfig.from_mapping(agreeing).causal == (True, True)


def test_flags_that_are_not_booleans_are_refused() -> None:
    with pytest.raises(CheckpointError, match="causal_head: true or false is expected"):
        DFlashConfig.from_mapping(with_keys("zlab/dflash", True, {"causal_head": "yes"}))


def test_a_causal_flag_that_disagrees_with_the_speculators_one_is_refused() -> None:
    data = config("speculators/dflash") | {"sliding_window_non_causal": True}
    with pytest.raises(CheckpointError, match="disagrees with a causal head"):
        DFlashConfig.from_mapping(data | {"causal": True})


@pytest.mark.parametrize(
    ("keys", "inner", "message"),
    [
        ({"num_anchors": 512}, False, "num_anchors: DeepSpec's layout"),
        ({"markov_rank": 0}, False, "markov_rank: DeepSpec's layout"),
        ({"markov_rank": 16}, True, "its anchor slot predicts"),
        ({"enable_confidence_head": False}, False, "enable_confidence_head: DeepSpec's"),
        ({"projector_type": "dspark"}, True, "projector_type: 'dspark' .SpecForge."),
        ({"architectures": ["DSparkDraftModel"]}, False, "DSparkDraftModel .DSpark."),
        ({"adapter_path": "adapter"}, False, "adapter_path: JetSpec"),
        ({"target_adapter": {}}, True, "target_adapter: JetSpec"),
    ],
)
def test_other_heads_are_refused_by_name(
    keys: dict[str, Any], inner: bool, message: str, tmp_path: Path
) -> None:
    """In loading and in `describe`, in the same words."""
    folder = tmp_path / "checkpoint"
    shutil.copytree(FIXTURES / "zlab/dflash", folder)
    (folder / "config.json").write_text(json.dumps(with_keys("zlab/dflash", inner, keys)))
    with pytest.raises(CheckpointError, match=message) as caught:
        DFlashModel.from_folder(folder)
    assert describe(folder).problems == (str(caught.value),)


def test_deepspec_s_flat_layout_is_refused_with_the_reason(tmp_path: Path) -> None:
    data = config()
    data |= data.pop("dflash_config") | {"architectures": ["Qwen3DSparkModel"], "num_anchors": 10}
    (tmp_path / "config.json").write_text(json.dumps(data))
    for read in (describe, DFlashModel.from_folder):
        with pytest.raises(CheckpointError, match="its anchor slot predicts"):
            read(tmp_path)


@pytest.mark.parametrize("name", ["adapter/adapter_config.json", "lora/adapter_config.json"])
def test_folders_with_an_adapter_are_refused_as_jetspec_plus_plus(
    name: str, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoint"
    shutil.copytree(FIXTURES / "heads/jetspec", folder)
    DFlashModel.from_folder(folder)  # negative control
    (folder / name).parent.mkdir()
    (folder / name).write_text("{}")
    with pytest.raises(CheckpointError, match=r"JetSpec\+\+ .* is not supported") as caught:
        DFlashModel.from_folder(folder)
    assert describe(folder).problems == (str(caught.value),)
