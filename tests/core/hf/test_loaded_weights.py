"""Damaged target checkpoints are refused with the tensors' names."""

import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from draftwood.core.errors import CheckpointError
from draftwood.core.hf import load_target
from draftwood.core.hf.loaded_weights import refuse_not_finite
from draftwood.core.hf.quantised import stored_parts

UP = "model.layers.0.mlp.up_proj.weight"
NORM = "model.norm.weight"


@pytest.fixture
def folder(fresh_model, tmp_path):
    fresh_model("llama").save_pretrained(tmp_path)
    return tmp_path


def rewrite(folder, change):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def prefix(tensors):
    for name in list(tensors):
        tensors["module." + name] = tensors.pop(name)


def rename(tensors):
    tensors["model.layers.0.mlp.upward.weight"] = tensors.pop(UP)


DAMAGE = {
    "missing": (lambda tensors: tensors.pop(UP), f"missing: {UP}"),
    "renamed": (rename, r"not understood: model.layers.0.mlp.upward.weight"),
    "prefixed": (prefix, "missing: .*not understood: module."),
    "bias": (
        lambda tensors: tensors.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(32)}),
        "not understood: model.layers.0.self_attn.q_proj.bias",
    ),
    "shape": (
        lambda tensors: tensors.update({UP: torch.ones(40, 32)}),
        r"of another shape: .*up_proj.weight is \(40, 32\), the configuration says \(48, 32\)",
    ),
    "NaN": (lambda tensors: tensors[NORM].fill_(float("nan")), f"not finite.*{NORM}"),
    "infinite": (lambda tensors: tensors[NORM].fill_(float("inf")), f"not finite.*{NORM}"),
}


@pytest.mark.covers("damaged-checkpoint")
@pytest.mark.parametrize("damage", list(DAMAGE))
def test_a_target_with_damaged_weights_is_refused_by_name(folder, damage):
    change, message = DAMAGE[damage]
    rewrite(folder, change)
    with pytest.raises(CheckpointError) as caught:
        load_target(folder, device="cpu")
    assert re.search(message, str(caught.value), re.DOTALL)
    assert str(folder) in str(caught.value)


@pytest.mark.covers("damaged-checkpoint")
def test_layers_beyond_the_configurations_are_refused(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(CheckpointError, match=r"not understood: model\.layers\.3\."):
        load_target(folder, device="cpu")


def test_a_module_that_the_architecture_does_not_have_is_left_alone(folder):
    rewrite(folder, lambda tensors: tensors.update({"mtp.head.weight": torch.ones(3)}))
    assert load_target(folder, device="cpu").vocab_size == 61


@pytest.mark.covers("damaged-checkpoint")
@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
def test_truncated_weights_are_a_checkpoint_error(folder, share):
    path = folder / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(CheckpointError, match=re.escape(str(folder))):
        load_target(folder, device="cpu")


@pytest.mark.parametrize("text", ["[1]", "", "{", '{"model_type": 3}', '{"model_type": "llama"}'])
def test_a_broken_configuration_is_a_checkpoint_error(folder, text):
    (folder / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=re.escape(str(folder))):
        load_target(folder, device="cpu")


@pytest.mark.covers("wrapped-target")
@pytest.mark.filterwarnings("ignore")
def test_a_torchao_checkpoint_loads_and_a_scale_that_is_nan_is_named(tmp_path, fresh_model):
    quantization = pytest.importorskip("torchao.quantization")
    from transformers import TorchAoConfig

    fresh_model("llama").float().save_pretrained(tmp_path / "plain")
    method = TorchAoConfig(quantization.Int8WeightOnlyConfig(version=2))
    model = AutoModelForCausalLM.from_pretrained(
        tmp_path / "plain", quantization_config=method, dtype=torch.float32
    )
    model.save_pretrained(tmp_path / "quantised")
    target = load_target(tmp_path / "quantised", device="cpu")
    weight = target.model.model.layers[0].mlp.up_proj.weight
    assert len(stored_parts(weight)) > 1
    weight.scale.fill_(torch.nan)
    with pytest.raises(CheckpointError, match=r"not finite.*layers\.0\.mlp\.up_proj\.weight"):
        refuse_not_finite(target.model, "quantised")
