"""Checkpoints described from config and headers, converted between layouts, refused in one line."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftwood.core.errors import CheckpointError
from draftwood.plugins.drafters.common.headers import read_header, read_headers
from draftwood.plugins.drafters.common.weights import read_weights
from draftwood.plugins.drafters.dflash.config import DFlashConfig
from draftwood.plugins.drafters.dflash.model import DFlashModel
from draftwood.plugins.drafters.eagle3.model import Eagle3Model
from draftwood.plugins.drafters.formats.convert import convert
from draftwood.plugins.drafters.formats.describe import Mapped, Pairing, describe

FIXTURES = Path(__file__).parents[2] / "fixtures"


def test_each_published_kind_is_recognised() -> None:
    zlab = describe(FIXTURES / "zlab/dflash")
    assert (zlab.format, zlab.algorithm) == ("zlab", "dflash")
    assert zlab.pairs_with == Pairing(None, 6, 64)
    assert (zlab.taps, zlab.block, zlab.vocabulary) == ((1, 2, 4), 8, Mapped(96, 96))
    second = describe(FIXTURES / "zlab/dflash2")
    assert (second.format, second.algorithm) == ("zlab", "dflash2")
    speculators = describe(FIXTURES / "speculators/dflash")
    assert (speculators.format, speculators.algorithm) == ("speculators", "dflash")
    assert speculators.taps == zlab.taps
    eagle = describe(FIXTURES / "speculators/eagle3")
    assert (eagle.format, eagle.algorithm) == ("speculators", "eagle3")
    assert eagle.pairs_with == Pairing("../../zlab/target", None, 64)
    assert (eagle.taps, eagle.block, eagle.vocabulary) == ((1, 2, 4), None, Mapped(96, 64))
    model = describe(FIXTURES / "zlab/target")
    assert (model.format, model.algorithm, model.taps) == ("transformers", "causal_lm", ())
    assert not any(d.problems for d in (zlab, second, speculators, eagle, model))


def test_describing_reads_no_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a tensor was read")

    monkeypatch.setattr("draftwood.plugins.drafters.common.weights.load_file", refuse)
    assert not describe(FIXTURES / "speculators/eagle3").problems
    with pytest.raises(CheckpointError, match="a tensor was read"):
        read_weights(FIXTURES / "speculators/eagle3")  # negative control


def copied(tmp_path: Path, layout: str = "zlab/dflash") -> Path:
    folder = tmp_path / "checkpoint"
    shutil.copytree(FIXTURES / layout, folder, ignore=shutil.ignore_patterns("expected*"))
    return folder


def configured(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    data = json.loads((folder / "config.json").read_text())
    change(data)
    (folder / "config.json").write_text(json.dumps(data))


def reweighted(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


def shortened(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


MALFORMED: dict[str, tuple[Callable[[Path], object], str]] = {
    "absent config key": (
        lambda folder: configured(folder, lambda c: c["dflash_config"].pop("mask_token_id")),
        "mask_token_id: missing",
    ),
    "wrong layer ids": (
        lambda folder: configured(
            folder, lambda c: c["dflash_config"].update(target_layer_ids=[1, 2, 6])
        ),
        "layer 6 of a target with layers 0 to 5",
    ),
    "missing tensor": (
        lambda folder: reweighted(folder, lambda w: w.pop("norm.weight")),
        "missing: norm.weight",
    ),
    "wrong shape": (
        lambda folder: reweighted(folder, lambda w: w.update({"fc.weight": torch.zeros(64, 128)})),
        "fc.weight is (64, 128), and config.json makes it (64, 192)",
    ),
    "other vocabulary": (
        lambda folder: configured(folder, lambda c: c.update(draft_vocab_size=32)),
        "needs its own lm_head.weight and d2t",
    ),
    "cut off": (shortened, "it was cut off"),
    "no weights": (
        lambda folder: (folder / "model.safetensors").unlink(),
        "neither model.safetensors nor model.safetensors.index.json",
    ),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_a_malformed_checkpoint_is_one_clear_problem(what: str, tmp_path: Path) -> None:
    """Inspecting says it, loading raises it, and the words are the same."""
    folder = copied(tmp_path)
    spoil, message = MALFORMED[what]
    spoil(folder)
    (problem,) = describe(folder).problems
    assert message in problem
    assert str(folder) in problem
    with pytest.raises(CheckpointError) as caught:
        DFlashModel.from_folder(folder)
    assert str(caught.value) == problem
    with pytest.raises(CheckpointError) as caught:
        convert(folder, tmp_path / "other", "speculators")
    assert str(caught.value) == problem
    assert not (tmp_path / "other").exists()


def test_an_eagle_checkpoint_that_names_no_layers_says_what_to_set(tmp_path: Path) -> None:
    folder = copied(tmp_path, "speculators/eagle3")
    configured(folder, lambda c: c.pop("eagle_aux_hidden_state_layer_ids"))
    (problem,) = describe(folder).problems
    assert "drafter.taps" in problem
    Eagle3Model.from_folder(folder)  # it does load


def test_what_is_of_no_known_kind_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="of no known kind"):
        describe(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match="a JSON object is expected"):
        describe(tmp_path)
    (tmp_path / "config.json").write_text('{"speculators_model_type": "mtp"}')
    assert "'mtp' is not supported" in describe(tmp_path).problems[0]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda b: b[:4], "cut off in its header"),
        (lambda b: b[:100], "cut off in its header"),
        (lambda b: b + b"\0", "it was added to"),
        (lambda b: b[:8] + b"x" + b[9:], "not a safetensors header"),
        (lambda b: b.replace(b'"shape":[64,192]', b'"shape":[64,193]'), "cannot lie at bytes"),
    ],
)
def test_a_headers_places_must_fill_the_file(
    spoil: Callable[[bytes], bytes], message: str, tmp_path: Path
) -> None:
    whole = (FIXTURES / "zlab/dflash/model.safetensors").read_bytes()
    path = tmp_path / "model.safetensors"
    path.write_bytes(whole)
    assert len(read_header(path)) == len(load_file(path))
    path.write_bytes(spoil(whole))
    with pytest.raises(CheckpointError, match=message):
        read_header(path)


def sharded(folder: Path) -> None:
    """The weights in two files and an index."""
    weights = load_file(folder / "model.safetensors")
    names = sorted(weights)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    (folder / "model.safetensors").unlink()
    for shard, keys in shards.items():
        save_file({key: weights[key] for key in keys}, folder / shard)
    index = {"weight_map": {key: shard for shard, keys in shards.items() for key in keys}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("shards", [False, True])
def test_there_and_back_is_bitwise_on_weights_and_equal_on_meaning(
    shards: bool, tmp_path: Path
) -> None:
    first = copied(tmp_path)
    if shards:
        sharded(first)
    second, third = tmp_path / "second", tmp_path / "third"
    convert(first, second, "speculators", target="some/model")
    convert(second, third, "zlab")
    assert describe(second).pairs_with.model == "some/model"
    assert describe(third).format == "zlab"
    original = DFlashConfig.from_file(first)
    for folder in (second, third):
        assert DFlashConfig.from_file(folder) == original
        weights = {path.name: path.read_bytes() for path in first.glob("*.safetensors*")}
        assert {path.name: path.read_bytes() for path in folder.glob("*.safetensors*")} == weights
        assert not describe(folder).problems


def test_the_layouts_count_layers_each_in_its_own_way(tmp_path: Path) -> None:
    convert(FIXTURES / "zlab/dflash", tmp_path / "a", "speculators")
    convert(FIXTURES / "speculators/dflash", tmp_path / "b", "zlab")
    ours = json.loads((tmp_path / "a/config.json").read_text())
    theirs = json.loads((FIXTURES / "speculators/dflash/config.json").read_text())
    for key in ("aux_hidden_state_layer_ids", "block_size", "draft_vocab_size", "mask_token_id"):
        assert ours[key] == theirs[key]
    back = json.loads((tmp_path / "b/config.json").read_text())
    assert ours["aux_hidden_state_layer_ids"] == [2, 3, 5]
    assert back["dflash_config"]["target_layer_ids"] == [1, 2, 4]
    inner = {"num_hidden_layers", "hidden_size", "head_dim", "rope_parameters", "layer_types"}
    for key in inner:
        assert ours["transformer_layer_config"][key] == theirs["transformer_layer_config"][key]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"final_logit_softcapping": 30.0}, "cannot say: final_logit_softcapping"),
        ({"is_causal": True}, "is_causal with layers of full attention"),
        ({"input_embedding_scale": 8.0}, "input_embedding_scale"),
    ],
)
def test_what_a_layout_cannot_say_is_not_dropped(
    change: dict[str, object], message: str, tmp_path: Path
) -> None:
    folder = copied(tmp_path)
    configured(folder, lambda config: config.update(change))
    with pytest.raises(CheckpointError, match=message):
        convert(folder, tmp_path / "other", "speculators")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint"]


@pytest.mark.parametrize("is_causal", [None, False])
def test_sliding_layers_keep_their_direction(is_causal: bool | None, tmp_path: Path) -> None:
    folder = copied(tmp_path)
    types = ["sliding_attention", "full_attention"]
    change = {"layer_types": types, "sliding_window": 6, "is_causal": is_causal}
    configured(folder, lambda config: config.update(change))
    convert(folder, tmp_path / "other", "speculators")
    there = DFlashConfig.from_file(tmp_path / "other")
    assert there.causal == ((is_causal is None), False)
    assert there.windows == (6, None)


def test_only_what_has_both_layouts_is_converted(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(CheckpointError, match="convolutions and selector"):
        convert(FIXTURES / "zlab/dflash2", out, "speculators")
    with pytest.raises(CheckpointError, match="only dflash has both layouts"):
        convert(FIXTURES / "speculators/eagle3", out, "zlab")
    with pytest.raises(CheckpointError, match="in the zlab layout already"):
        convert(FIXTURES / "zlab/dflash", out, "zlab")
    (out / "kept").mkdir(parents=True)
    with pytest.raises(CheckpointError, match="not an empty folder"):
        convert(FIXTURES / "zlab/dflash", out, "speculators")
    assert [path.name for path in out.iterdir()] == ["kept"]


def test_headers_of_shards_are_read_together(tmp_path: Path) -> None:
    folder = copied(tmp_path)
    whole = read_headers(folder)
    sharded(folder)
    assert read_headers(folder) == whole
    (folder / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(CheckpointError, match="no weight_map"):
        read_headers(folder)
