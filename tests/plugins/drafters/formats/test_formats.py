"""Describing checkpoints from config and headers, and converting them between layouts."""

import json
import logging
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from safetensors.torch import load_file, save_file

from draftwood.core.errors import CheckpointError
from draftwood.plugins.drafters.common.headers import read_header, read_headers
from draftwood.plugins.drafters.common.weights import read_weights
from draftwood.plugins.drafters.dflash.config import DFlashConfig
from draftwood.plugins.drafters.dflash.model import DFlashModel
from draftwood.plugins.drafters.eagle3.config import Eagle3Config
from draftwood.plugins.drafters.eagle3.model import Eagle3Model
from draftwood.plugins.drafters.formats.convert import LAYOUTS, convert
from draftwood.plugins.drafters.formats.describe import Mapped, Pairing, describe

FIXTURES = Path(__file__).parents[3] / "fixtures"


def test_each_published_format_is_recognised() -> None:
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


def test_describe_reads_no_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


KINDS = {
    "zlab dflash": ("zlab/dflash", None, "speculators"),
    "zlab dflash2": ("zlab/dflash2", None, "speculators"),
    "speculators dflash": ("speculators/dflash", None, "zlab"),
    "speculators dflash2": ("zlab/dflash2", "speculators", "zlab"),
    "transformers dflash": ("zlab/dflash", "transformers", "zlab"),
    "speculators eagle3": ("speculators/eagle3", None, "eagle"),
    "eagle eagle3": ("speculators/eagle3", "eagle", "speculators"),
}
"""Every format of every algorithm: a fixture, the layout to convert it to first, and another."""


def made(kind: str, folder: Path) -> Path:
    """A checkpoint of this kind."""
    fixture, layout, _ = KINDS[kind]
    if layout is None:
        ignored = shutil.ignore_patterns("expected*")
        shutil.copytree(FIXTURES / fixture, folder, ignore=ignored)
    else:
        convert(FIXTURES / fixture, folder, layout)  # type: ignore[arg-type]
    return folder


def load(folder: Path) -> DFlashModel | Eagle3Model:
    kind = Eagle3Model if "eagle3" in describe(folder).algorithm else DFlashModel
    return kind.from_folder(folder)


LAYER_IDS = {
    "zlab": ("dflash_config", "target_layer_ids", [1, 2, 6]),
    "transformers": (None, "target_layer_ids", [1, 2, 6]),
    "speculators dflash": (None, "aux_hidden_state_layer_ids", [0, 3, 5]),
    "eagle3": (None, "eagle_aux_hidden_state_layer_ids", [0, 3, 5]),
}


def with_wrong_layers(folder: Path, kind: str) -> None:
    ((inner, key, ids),) = [where for name, where in LAYER_IDS.items() if name in kind]
    configured(folder, lambda c: (c[inner] if inner else c).update({key: ids}))


def without_a_key(folder: Path, kind: str) -> None:
    key = "num_attention_heads" if "eagle3" in kind else "block_size"
    nested = kind == "speculators eagle3"
    configured(folder, lambda c: (c["transformer_layer_config"] if nested else c).pop(key))


def reshaped(folder: Path) -> None:
    def change(weights: dict[str, torch.Tensor]) -> None:
        (name,) = [name for name in weights if name.endswith("fc.weight")]
        weights[name] = torch.zeros(64, 128)

    reweighted(folder, change)


FAULTS: dict[str, tuple[Callable[[Path, str], object], str]] = {
    "absent config key": (without_a_key, "(block_size|num_attention_heads): missing"),
    "wrong layer ids": (with_wrong_layers, "layer 6 of a target with layers 0 to 5|indices >= 1"),
    "missing tensor": (
        lambda folder, _: reweighted(folder, lambda w: w.pop("norm.weight")),
        "missing: norm.weight",
    ),
    "wrong shape": (
        lambda folder, _: reshaped(folder),
        r"fc.weight is \(64, 128\), and config.json makes it \(64, 192\)",
    ),
    "other vocabulary": (
        lambda folder, _: configured(folder, lambda c: c.update(draft_vocab_size=32)),
        r"needs its own lm_head.weight and d2t|d2t is \(64,\), and config.json makes it \(32,\)",
    ),
    "truncated": (lambda folder, _: shortened(folder), "it was truncated"),
    "no weights": (
        lambda folder, _: (folder / "model.safetensors").unlink(),
        "neither model.safetensors nor model.safetensors.index.json",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_of_a_checkpoint_gives_one_located_problem(
    fault: str, kind: str, tmp_path: Path
) -> None:
    """`describe` lists it; loading and converting raise it in the same words, and write nothing."""
    if fault == "other vocabulary" and kind == "transformers dflash":
        pytest.skip("this layout uses the target's head and has no vocabulary size")
    folder = made(kind, tmp_path / "checkpoint")
    load(folder)  # negative control
    spoil, message = FAULTS[fault]
    spoil(folder, kind)
    (problem,) = describe(folder).problems
    assert re.search(message, problem)
    assert str(folder) in problem
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    assert str(caught.value) == problem
    with pytest.raises(CheckpointError) as caught:
        convert(folder, tmp_path / "other", KINDS[kind][2])  # type: ignore[arg-type]
    assert str(caught.value) == problem
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def config_fields(folder: Path) -> dict[str, Any]:
    config: Any = DFlashConfig if "dflash" in describe(folder).algorithm else Eagle3Config
    fields = attrs.asdict(config.from_file(folder))
    return {key: value for key, value in fields.items() if key not in ("layout", "source")}


@pytest.mark.parametrize("kind", KINDS)
def test_converting_there_and_back_changes_no_config_and_no_tensor(
    kind: str, tmp_path: Path
) -> None:
    first = made(kind, tmp_path / "first")
    description = describe(first)
    target = str(FIXTURES / "zlab/target")
    weights = load_file(first / "model.safetensors")
    for there in set(LAYOUTS[description.algorithm]) - {description.format}:
        second, third = tmp_path / there, tmp_path / f"{there} and back"
        convert(first, second, there, target)
        convert(second, third, description.format, target)  # type: ignore[arg-type]
        assert describe(second).format == there
        assert not describe(second).problems
        load(second)
        assert config_fields(third) == config_fields(first)
        back = load_file(third / "model.safetensors")
        assert back.keys() == weights.keys()
        for name, tensor in weights.items():
            assert torch.equal(back[name].view(torch.uint8), tensor.view(torch.uint8))


def test_eagle_checkpoints_without_tapped_layers_name_the_option_to_set(tmp_path: Path) -> None:
    folder = copied(tmp_path, "speculators/eagle3")
    configured(folder, lambda c: c.pop("eagle_aux_hidden_state_layer_ids"))
    (problem,) = describe(folder).problems
    assert "drafter.taps" in problem
    Eagle3Model.from_folder(folder)  # it does load


def test_unknown_kinds_of_checkpoint_are_refused(tmp_path: Path) -> None:
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
        (lambda b: b[:4], "truncated in its header"),
        (lambda b: b[:100], "truncated in its header"),
        (lambda b: b + b"\0", "has additional bytes"),
        (lambda b: b[:8] + b"x" + b[9:], "not a safetensors header"),
        (lambda b: b.replace(b'"shape":[64,192]', b'"shape":[64,193]'), "cannot lie at bytes"),
    ],
)
def test_tensors_of_a_header_must_fill_the_file(
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
def test_converting_between_zlab_and_speculators_copies_files_bitwise(
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


def test_layouts_index_layers_by_their_own_conventions(tmp_path: Path) -> None:
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
        ({"final_logit_softcapping": 30.0}, "cannot represent: final_logit_softcapping"),
        ({"is_causal": True}, "is_causal with layers of full attention"),
        ({"causal_head": True}, "cannot represent: a causal head"),
        ({"input_embedding_scale": 8.0}, "input_embedding_scale"),
    ],
)
def test_options_that_a_layout_cannot_represent_are_refused(
    change: dict[str, object], message: str, tmp_path: Path
) -> None:
    folder = copied(tmp_path)
    configured(folder, lambda config: config.update(change))
    with pytest.raises(CheckpointError, match=message):
        convert(folder, tmp_path / "other", "speculators")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint"]


@pytest.mark.parametrize("is_causal", [None, False])
def test_sliding_layers_keep_their_causality(is_causal: bool | None, tmp_path: Path) -> None:
    folder = copied(tmp_path)
    types = ["sliding_attention", "full_attention"]
    change = {"layer_types": types, "sliding_window": 6, "is_causal": is_causal}
    configured(folder, lambda config: config.update(change))
    convert(folder, tmp_path / "other", "speculators")
    there = DFlashConfig.from_file(tmp_path / "other")
    assert there.causal == ((is_causal is None), False)
    assert there.windows == (6, None)


@pytest.mark.parametrize("key", ["is_causal", "causal_head", "causal"])
def test_causal_sliding_heads_convert_there_and_back(key: str, tmp_path: Path) -> None:
    folder = copied(tmp_path)
    change = {"layer_types": ["sliding_attention"] * 2, "sliding_window": 6}
    configured(folder, lambda c: (c.update(change), c["dflash_config"].update({key: True})))
    convert(folder, tmp_path / "there", "speculators")
    convert(tmp_path / "there", tmp_path / "back", "zlab")
    assert config_fields(folder)["causal"] == (True, True)
    for other in ("there", "back"):
        assert config_fields(tmp_path / other) == config_fields(folder)


@pytest.mark.parametrize(
    ("to", "message"),
    [("speculators", "a causal head"), ("transformers", "causal layers"), ("zlab", "already")],
)
def test_jetspec_heads_are_refused_by_layouts_without_the_flag(
    to: Any, message: str, tmp_path: Path
) -> None:
    assert describe(FIXTURES / "heads/jetspec").problems == ()
    with pytest.raises(CheckpointError, match=message):
        convert(FIXTURES / "heads/jetspec", tmp_path / "other", to)


def test_unpublished_and_equal_layouts_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(CheckpointError, match="dflash2, which is not published in the tran"):
        convert(FIXTURES / "zlab/dflash2", out, "transformers")
    with pytest.raises(CheckpointError, match="is eagle3, which is not published in the zlab lay"):
        convert(FIXTURES / "speculators/eagle3", out, "zlab")
    with pytest.raises(CheckpointError, match="causal_lm, which has no other layout"):
        convert(FIXTURES / "zlab/target", out, "zlab")
    with pytest.raises(CheckpointError, match="in the zlab layout already"):
        convert(FIXTURES / "zlab/dflash", out, "zlab")
    (out / "kept").mkdir(parents=True)
    with pytest.raises(CheckpointError, match="not an empty folder"):
        convert(FIXTURES / "zlab/dflash", out, "speculators")
    assert [path.name for path in out.iterdir()] == ["kept"]


def test_an_absent_vocabulary_size_is_read_from_the_target(tmp_path: Path) -> None:
    own = made("transformers dflash", tmp_path / "own")
    assert describe(own).vocabulary is None
    with pytest.raises(CheckpointError, match="pass the target's folder with --target"):
        convert(own, tmp_path / "out", "zlab", target="some/model")
    convert(own, tmp_path / "out", "zlab", target=str(FIXTURES / "zlab/target"))
    assert describe(tmp_path / "out").vocabulary == Mapped(96, 96)


def test_eagle_checkpoints_without_tapped_layers_convert_with_given_taps(
    tmp_path: Path,
) -> None:
    folder = made("eagle eagle3", tmp_path / "eagle")
    configured(folder, lambda c: c.pop("eagle_aux_hidden_state_layer_ids"))
    with pytest.raises(CheckpointError, match="does not name the target layers"):
        convert(folder, tmp_path / "out", "speculators")
    convert(folder, tmp_path / "out", "speculators", taps=(1, 2, 4))
    assert config_fields(tmp_path / "out") == config_fields(FIXTURES / "speculators/eagle3")


def test_unsupported_assistants_are_named(
    tmp_path: Path,
) -> None:
    data = {"model_type": "gemma4_assistant", "architectures": ["Gemma4AssistantForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(data))
    description = describe(tmp_path)
    assert (description.format, description.algorithm) == ("transformers", "gemma4_assistant")
    assert "'gemma4_assistant' is not supported" in description.problems[0]


@pytest.mark.parametrize("window", [None, 6, 40])
def test_the_class_of_transformers_gives_the_same_block(window: int | None, tmp_path: Path) -> None:
    """Its network and ours, loaded from the same converted folder."""
    from transformers.cache_utils import DFlashCache
    from transformers.models.muse_glimmer_assistant import MuseGlimmerAssistantModel

    first = copied(tmp_path)
    if window is not None:
        sliding = {"layer_types": ["sliding_attention", "full_attention"], "is_causal": False}
        configured(first, lambda c: c.update(sliding, sliding_window=window))
    folder = tmp_path / "own"
    convert(first, folder, "transformers")
    theirs = MuseGlimmerAssistantModel.from_pretrained(folder, attn_implementation="eager").eval()
    ours, original = DFlashModel.from_folder(folder), DFlashModel.from_folder(first)
    torch.manual_seed(0)
    features, embeds = torch.randn(17, 192), torch.randn(8, 64)
    cache = DFlashCache(config=theirs.config)
    cache.set_previous_accepted_tokens(17)
    with torch.inference_mode():
        expected = theirs(
            noise_embeds=embeds[None], context_hidden_states=features[None], cache=cache
        ).last_hidden_state[0]
        for model in (ours, original):
            rows = model.context_kv(model.context(features), torch.arange(17))
            actual = model.block(embeds, torch.arange(17, 25), rows)
            torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)


class Canary:
    """A model of six layers; every output of layer l is filled with the number l."""

    def __init__(self) -> None:
        from transformers import Qwen3Config, Qwen3ForCausalLM

        from draftwood.core.hf import wrap_model

        sizes = {"hidden_size": 64, "intermediate_size": 8, "head_dim": 8, "vocab_size": 96}
        heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 6}
        self.model = Qwen3ForCausalLM(Qwen3Config(**sizes, **heads)).eval()
        decoder = self.model.model
        for number, module in enumerate(decoder.layers):
            self._fill(module, number)
        self._fill(decoder.norm, 5)  # the tap of the last layer is after the final norm
        self.target = wrap_model(self.model)

    @staticmethod
    def _fill(module: torch.nn.Module, number: int) -> None:
        real = module.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            output = real(*args, **kwargs)
            if isinstance(output, tuple):
                return (torch.full_like(output[0], number), *output[1:])
            return torch.full_like(output, number)

        module.forward = forward

    def tapped(self, layers: Sequence[int]) -> list[float]:
        features = self.target.open(layers).prefill([1, 2, 3]).features
        assert features is not None
        return [float(part.unique()) for part in features.chunk(len(layers), -1)]

    def hidden_states(self, entries: Sequence[int]) -> list[float]:
        with torch.inference_mode():
            states = self.model(torch.tensor([[1, 2, 3]]), output_hidden_states=True).hidden_states
        return [float(states[entry].unique()) for entry in entries]


@pytest.fixture(scope="module")
def canary() -> Canary:
    return Canary()


@pytest.mark.parametrize("kind", KINDS)
def test_taps_read_the_layers_that_the_format_names(
    kind: str, canary: Canary, tmp_path: Path
) -> None:
    """z-lab and transformers name a layer, whose output is entry l + 1 of hidden_states; the
    others name the entry. By the other convention every number would differ."""
    folder = made(kind, tmp_path / "checkpoint")
    taps = describe(folder).taps
    assert taps is not None
    data = json.loads((folder / "config.json").read_text())
    by_layer = (data.get("dflash_config") or data).get("target_layer_ids")
    entries = data.get("aux_hidden_state_layer_ids", data.get("eagle_aux_hidden_state_layer_ids"))
    published = [layer + 1 for layer in by_layer] if by_layer else entries
    assert canary.tapped(taps) == canary.hidden_states(published) == [1.0, 2.0, 4.0]
    wrong = [tap + 1 for tap in taps]
    assert canary.tapped(wrong) != canary.tapped(taps)  # negative control
    assert canary.tapped((5,)) == canary.hidden_states((6,)) == [5.0]


@pytest.mark.parametrize("kind", ["zlab dflash", "eagle eagle3"])
def test_pickled_weights_are_read_only_if_allowed_with_a_warning(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = made(kind, tmp_path / "checkpoint")
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    (problem,) = describe(folder).problems
    assert "pytorch_model.bin, a pickle" in problem
    model = Eagle3Model if "eagle3" in kind else DFlashModel
    with pytest.raises(CheckpointError, match="set allow_pickle: true"):
        model.from_folder(folder)
    with caplog.at_level(logging.WARNING, "draftwood"):
        model.from_folder(folder, allow_pickle=True)
    assert "is a pickle: it may run code" in caplog.text


def test_headers_of_all_shards_are_merged(tmp_path: Path) -> None:
    folder = copied(tmp_path)
    whole = read_headers(folder)
    sharded(folder)
    assert read_headers(folder) == whole
    (folder / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(CheckpointError, match="no weight_map"):
        read_headers(folder)
