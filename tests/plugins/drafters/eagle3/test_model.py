"""The EAGLE-3 network against a published-format checkpoint and its recorded outputs."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftwood.core.errors import CheckpointError
from draftwood.plugins.drafters.common.cache import ContextCache
from draftwood.plugins.drafters.common.config import Llama3Scaling
from draftwood.plugins.drafters.common.layers import Rotary
from draftwood.plugins.drafters.eagle3.config import Eagle3Config
from draftwood.plugins.drafters.eagle3.model import Eagle3Model

CHECKPOINT = Path(__file__).parents[3] / "fixtures/speculators/eagle3"


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def expected() -> dict[str, torch.Tensor]:
    return load_file(CHECKPOINT / "expected.safetensors")


def prefill(model, states, prompt, cache):
    """The states of all rows of a prompt, in one forward pass."""
    rows = len(prompt) - 1
    embeds = model.embed_tokens(prompt[1:])
    seen = torch.ones(rows, rows, dtype=torch.bool).tril()
    return model.run(embeds, model.fuse(states), torch.arange(1, rows + 1), cache, seen)


@pytest.mark.parametrize("k", range(3))
def test_first_and_second_steps_give_the_recorded_logits(k, expected):
    model = Eagle3Model.from_folder(CHECKPOINT)
    prompt, states = expected[f"prompt_{k}"][0], expected[f"features_{k}"][0]
    cache = ContextCache(model)
    first = prefill(model, states, prompt, cache)
    torch.testing.assert_close(model.logits(first), expected[f"logits_{k}"][0], atol=1e-4, rtol=0)
    # Each second step is a separate branch behind the prompt's rows.
    rows = len(prompt) - 1
    steps = rows - 2
    seen = torch.zeros(steps, rows + steps, dtype=torch.bool)
    seen[:, :rows] = torch.ones(steps, rows, dtype=torch.bool).tril()
    seen[:, rows:].fill_diagonal_(fill_value=True)
    embeds = model.embed_tokens(prompt[2:-1])
    positions = torch.arange(2, steps + 2)
    second = model.run(embeds, first[:steps], positions, cache, seen)
    recorded = expected[f"logits_second_step_{k}"][0]
    torch.testing.assert_close(model.logits(second), recorded, atol=1e-4, rtol=0)


def test_features_one_position_early_change_the_logits(expected):
    """Negative control of the comparison with recorded logits."""
    model = Eagle3Model.from_folder(CHECKPOINT)
    prompt, states = expected["prompt_0"][0], expected["features_0"][0]
    wrong = prefill(model, states.roll(1, 0), prompt, ContextCache(model))
    assert (model.logits(wrong) - expected["logits_0"][0]).abs().max() > 0.1


def edited(tmp_path: Path, **change: object) -> Path:
    """A copy of the fixture with keys of its config replaced."""
    folder = tmp_path / "checkpoint"
    shutil.copytree(CHECKPOINT, folder, dirs_exist_ok=True)
    data = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(data | change))
    return folder


def rewritten(folder: Path, change) -> None:
    """Replace the weights of a checkpoint by `change(weights)`."""
    save_file(change(load_file(folder / "model.safetensors")), folder / "model.safetensors")


def outputs(model: Eagle3Model, states, prompt) -> tuple[torch.Tensor, torch.Tensor]:
    """The states of all rows, and their logits."""
    actual = prefill(model, states, prompt, ContextCache(model))
    return actual, model.logits(actual)


def test_the_original_layout_gives_the_same_logits(tmp_path, expected):
    folder = edited(tmp_path)
    data = json.loads((folder / "config.json").read_text())
    flat = {**data["transformer_layer_config"], "draft_vocab_size": 64}
    (folder / "config.json").write_text(json.dumps(flat))
    rewritten(
        folder, lambda weights: {n.replace("layers.0.", "midlayer."): w for n, w in weights.items()}
    )
    model = Eagle3Model.from_folder(folder)
    assert model.config.target_layer_ids is None
    _, logits = outputs(model, expected["features_1"][0], expected["prompt_1"][0])
    torch.testing.assert_close(logits, expected["logits_1"][0], atol=1e-4, rtol=0)


def test_each_norm_flag_moves_its_norm(tmp_path, expected):
    """Each flag's result equals plain tensor operations."""
    states, prompt = expected["features_0"][0], expected["prompt_0"][0]
    plain = Eagle3Model.from_folder(CHECKPOINT)
    generator = torch.Generator().manual_seed(0)
    scale = 1 + 0.3 * torch.randn(192, generator=generator)
    normed = torch.nn.functional.rms_norm(states, (192,), scale, 1e-6)
    each = [torch.nn.functional.rms_norm(s, (64,), None, 1e-6) for s in states.chunk(3, -1)]

    folder = edited(tmp_path, norm_before_fc=True)
    rewritten(folder, lambda weights: weights | {"input_norm.weight": scale})
    actual = outputs(Eagle3Model.from_folder(folder), states, prompt)[1]
    torch.testing.assert_close(actual, outputs(plain, normed, prompt)[1])

    folder = edited(tmp_path, fc_norm=True)
    ones = {f"fc_norm.{i}.weight": torch.ones(64) for i in range(3)}
    rewritten(folder, lambda weights: weights | ones)
    actual = outputs(Eagle3Model.from_folder(folder), states, prompt)[1]
    torch.testing.assert_close(actual, outputs(plain, torch.cat(each, -1), prompt)[1])

    raw, logits = outputs(plain, states, prompt)
    model = Eagle3Model.from_folder(edited(tmp_path, norm_output=True))
    handed, same = outputs(model, states, prompt)
    torch.testing.assert_close(same, logits)
    torch.testing.assert_close(handed, plain.norm(raw))

    model = Eagle3Model.from_folder(edited(tmp_path, norm_before_residual=True))
    moved = outputs(model, states, prompt)[0]
    assert (moved - raw).abs().max() > 0.1
    feature = plain.fuse(states)
    # With an MLP of zero only the residual differs: the normed feature, not the raw one.
    for each_model in (plain, model):
        each_model.first.mlp.down_proj.weight.zero_()
    difference = outputs(model, states, prompt)[0] - outputs(plain, states, prompt)[0]
    torch.testing.assert_close(
        difference, plain.first.hidden_norm(feature) - feature, atol=1e-5, rtol=0
    )


def test_the_rotary_table_grows_with_the_text(expected, monkeypatch):
    monkeypatch.setattr("draftwood.plugins.drafters.eagle3.model.POSITIONS", 3)
    model = Eagle3Model.from_folder(CHECKPOINT)
    assert model.rotary.size == 3
    _, logits = outputs(model, expected["features_2"][0], expected["prompt_2"][0])
    torch.testing.assert_close(logits, expected["logits_2"][0], atol=1e-4, rtol=0)


def test_later_layers_read_one_state_and_qwen3_norms_heads(tmp_path):
    data = json.loads((CHECKPOINT / "config.json").read_text())
    inner = data["transformer_layer_config"] | {"num_hidden_layers": 2, "model_type": "qwen3"}
    folder = edited(tmp_path, transformer_layer_config=inner)
    with torch.device("meta"):
        model = Eagle3Model(Eagle3Config.from_file(folder))
    assert model.first.self_attn.q_proj.weight.shape == (64, 128)
    assert model.later[0].self_attn.q_proj.weight.shape == (64, 64)
    assert model.later[0].self_attn.q_norm.weight.shape == (16,)
    with pytest.raises(CheckpointError) as caught:
        Eagle3Model.from_folder(folder)
    assert "missing: layers.1.self_attn.k_proj.weight" in str(caught.value)
    assert "missing: layers.0.self_attn.q_norm.weight" in str(caught.value)


def test_llama3_scaling_divides_slow_frequencies_only():
    plain = Rotary(64, 500000.0, 2)
    scaled = Rotary(64, 500000.0, 2, Llama3Scaling(8.0, 1.0, 4.0, 8192))
    one = torch.tensor([1])
    before, after = (
        torch.atan2(r(one, torch.float32)[1], r(one, torch.float32)[0])[0, 0, :32]
        for r in (plain, scaled)
    )
    turns = 8192 * before / (2 * torch.pi)
    torch.testing.assert_close(after[turns > 4], before[turns > 4])
    torch.testing.assert_close(after[turns < 1], before[turns < 1] / 8, rtol=1e-3, atol=0)
    between = (turns > 1) & (turns < 4)
    assert ((after < before) & (after > before / 8))[between].all()
    assert between.any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"eagle_aux_hidden_state_layer_ids": [0, 3, 5]}, "indices >= 1"),
        ({"eagle_aux_hidden_state_layer_ids": []}, "eagle_aux_hidden_state_layer_ids"),
        ({"speculators_model_type": "dflash"}, "not an EAGLE-3 drafter"),
        ({"norm_before_fc": True, "fc_norm": True}, "only one of the two"),
        ({"norm_output": "yes"}, "true or false"),
        ({"transformer_layer_config": {}}, "hidden_size: missing"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1.0}}, "yarn"),
        ({"layer_types": ["sliding_attention"]}, "sliding layers"),
        ({"model_type": "gpt2"}, "'gpt2' is not one of llama, qwen3"),
    ],
)
def test_config_errors_name_file_and_key(change, message, tmp_path):
    inner = {"model_type", "layer_types", "rope_parameters"} & set(change)
    if inner:
        data = json.loads((CHECKPOINT / "config.json").read_text())
        change = {"transformer_layer_config": data["transformer_layer_config"] | change}
    folder = edited(tmp_path, **change)
    with pytest.raises(CheckpointError, match=message) as caught:
        Eagle3Config.from_file(folder)
    assert str(folder / "config.json") in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w | {"fc.weight": torch.zeros(64, 128)}, "fc.weight is .64, 128., and config"),
        (lambda w: w | {"d2t": w["d2t"] + 64}, "outside a vocabulary of 96"),
        (lambda w: w | {"d2t": -torch.arange(64)}, "two draft tokens to one"),
        (lambda w: {n: t for n, t in w.items() if n != "d2t"}, "lm_head.weight and d2t"),
        (lambda w: w | {"layers.1.extra": torch.zeros(1)}, "unexpected: layers.1.extra"),
    ],
)
def test_weights_that_do_not_fit_are_named_in_the_error(change, message, tmp_path):
    folder = edited(tmp_path)
    rewritten(folder, change)
    with pytest.raises(CheckpointError, match=message):
        Eagle3Model.from_folder(folder)
