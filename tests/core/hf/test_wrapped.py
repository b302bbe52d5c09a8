"""Targets that people wrapped: compiled, PEFT, quantised, headless, put back into training."""

import pytest
import torch
from torch import nn
from transformers import BitsAndBytesConfig, FineGrainedFP8Config

from draftwood.core.errors import RequestError, UnsupportedTarget
from draftwood.core.hf import HFTarget
from draftwood.core.hf.head import embedding_weight, head_weight

PROMPT = [5, 9, 2, 33]
# peft calls names that transformers deprecates.
from_peft = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")


def logits(model, ids=PROMPT):
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0, -1]


def prefilled(target):
    return target.open(taps=[0, 3]).prefill(PROMPT)


@pytest.mark.covers("wrapped-target")
@pytest.mark.parametrize("how", ["model.compile()", "torch.compile(model)"])
def test_a_compiled_model_scores_as_the_original(fresh_model, how):
    model = fresh_model("llama")
    expected = prefilled(HFTarget(model))

    def refuse(*_, **__):
        raise AssertionError("each number of rows would be compiled anew")

    if how == "model.compile()":
        model.compile(backend="eager")
        model._compiled_call_impl = refuse
        target = HFTarget(model)
    else:
        target = HFTarget(Compiled(model))
    found = prefilled(target)
    assert torch.equal(found.logits, expected.logits)
    assert torch.equal(found.features, expected.features)


class Compiled:
    """What torch.compile returns, as far as it is looked at: it holds the original."""

    def __init__(self, model):
        self._orig_mod = model


@from_peft
@pytest.mark.covers("wrapped-target")
def test_an_adapter_that_is_switched_counts_from_the_next_request(fresh_model):
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    options = {"r": 4, "init_lora_weights": False, "target_modules": ["q_proj", "v_proj"]}
    model = peft.get_peft_model(fresh_model("llama"), peft.LoraConfig(**options))
    model.add_adapter("other", peft.LoraConfig(**options))
    target = HFTarget(model.eval())
    found = {}
    for name in ("default", "other", "default"):
        model.set_adapter(name)
        found[name] = prefilled(target).logits[0]
        torch.testing.assert_close(found[name], logits(model), atol=1e-4, rtol=1e-4)
    assert not torch.allclose(found["default"], found["other"], atol=1e-2)


@from_peft
@pytest.mark.covers("wrapped-target")
def test_a_soft_prompt_is_refused_with_the_reason(fresh_model):
    peft = pytest.importorskip("peft")
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
    model = peft.get_peft_model(fresh_model("llama"), config).eval()
    with pytest.raises(UnsupportedTarget, match="virtual tokens of PROMPT_TUNING"):
        HFTarget(model)


@pytest.mark.covers("wrapped-target")
def test_a_model_without_a_head_is_refused_with_what_to_load(fresh_model):
    with pytest.raises(UnsupportedTarget, match="AutoModelForCausalLM"):
        HFTarget(fresh_model("llama").model)


class Quantised(nn.Module):
    """A linear layer whose weight is stored as integers and a scale for each row."""

    def __init__(self, linear):
        super().__init__()
        scale = linear.weight.detach().abs().amax(-1, keepdim=True) / 127
        self.register_buffer("weight", (linear.weight.detach() / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.bias = linear.bias

    def forward(self, rows):
        return nn.functional.linear(rows, self.weight * self.scale, self.bias)


@pytest.mark.covers("wrapped-target")
@pytest.mark.parametrize("bias", [True, False])
def test_the_weight_of_a_quantised_head_is_what_it_multiplies_by(bias):
    torch.manual_seed(0)
    head = Quantised(nn.Linear(32, 61, bias=bias))
    found = head_weight(head, 32, torch.float32, torch.device("cpu"))
    torch.testing.assert_close(found, head.weight * head.scale, atol=1e-6, rtol=1e-5)


class QuantisedEmbedding(nn.Embedding):
    """An embedding whose rows are stored as integers and one scale, and scaled as Gemma's are."""

    def __init__(self, weight, embed_scale):
        super().__init__(*weight.shape)
        self.embed_scale = embed_scale
        self.scale = weight.abs().max() / 127
        self.weight = nn.Parameter((weight / self.scale).round().to(torch.int8), False)

    def forward(self, tokens):
        return self.weight[tokens] * self.scale * self.embed_scale


@pytest.mark.covers("wrapped-target")
def test_the_weight_of_a_quantised_embedding_is_its_rows_without_their_factor():
    embedding = QuantisedEmbedding(torch.randn(61, 32), embed_scale=5.0)
    found = embedding_weight(embedding, torch.device("cpu"))
    torch.testing.assert_close(found, embedding.weight * embedding.scale, atol=1e-6, rtol=1e-5)


def test_weights_of_a_plain_head_and_embedding_are_not_copied(fresh_model):
    model = fresh_model("llama")
    target = HFTarget(model)
    assert target.head_weight().data_ptr() == model.lm_head.weight.data_ptr()
    assert target.embedding_weight().data_ptr() == model.model.embed_tokens.weight.data_ptr()


@pytest.mark.covers("wrapped-target")
@pytest.mark.parametrize(
    ("settings", "how"),
    [
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "bitsandbytes: load_in_8bit"),
        (BitsAndBytesConfig(load_in_8bit=True), "bitsandbytes: load_in_8bit"),
        (FineGrainedFP8Config(), "fp8: activation_scheme"),
        ({"quant_method": "quanto", "activations": "int8"}, "quanto: activations"),
        ({"quant_method": "bitnet"}, "bitnet"),
    ],
)
def test_a_target_that_quantises_activations_is_refused_with_the_method(fresh_model, settings, how):
    model = fresh_model("llama")
    model.config.quantization_config = settings
    with pytest.raises(UnsupportedTarget, match=rf"quantises activations \({how}\)"):
        HFTarget(model)


@pytest.mark.covers("wrapped-target")
@pytest.mark.parametrize(
    "settings",
    [{"quant_method": "gptq", "bits": 4}, BitsAndBytesConfig(load_in_4bit=True)],
    ids=["gptq", "bitsandbytes-4bit"],
)
def test_a_target_that_quantises_weights_only_is_accepted(fresh_model, settings):
    model = fresh_model("llama")
    model.config.quantization_config = settings
    HFTarget(model)


@pytest.mark.covers("wrapped-target")
def test_a_torchao_target_is_accepted_unless_it_quantises_activations(fresh_model):
    quantization = pytest.importorskip("torchao.quantization")
    model = fresh_model("llama").float()
    quantization.quantize_(model, quantization.Int8WeightOnlyConfig())
    target = HFTarget(model)
    rows = torch.eye(32)
    expected = model.lm_head(rows).T
    torch.testing.assert_close(target.head_weight(), expected, atol=1e-5, rtol=1e-5)
    model = fresh_model("llama").float()
    quantization.quantize_(model, quantization.Int8DynamicActivationInt8WeightConfig())
    with pytest.raises(UnsupportedTarget, match=r"Int8Tensor of .*q_proj\.weight"):
        HFTarget(model)


@pytest.mark.covers("wrapped-target")
def test_a_model_put_into_training_mode_is_refused_at_the_next_request(fresh_model):
    model = fresh_model("gpt2")
    target = HFTarget(model)
    model.train()
    with pytest.raises(RequestError, match=r"call model\.eval\(\)"):
        target.open()
    model.eval()
    target.open()


class SharedScale(nn.Module):
    """A linear layer whose activations are rounded to `levels` by one scale for all rows."""

    def __init__(self, linear, levels):
        super().__init__()
        self.linear, self.levels = linear, levels

    def forward(self, rows):
        scale = rows.abs().amax() / self.levels
        return self.linear((rows / scale).round() * scale)


@pytest.mark.covers("loose-self-check")
@pytest.mark.parametrize(
    ("dtype", "levels"), [(torch.float32, 2**13), (torch.bfloat16, 127), (torch.float64, 2**13)]
)
def test_rows_that_share_an_activation_scale_are_refused_in_every_dtype(fresh_model, dtype, levels):
    """So finely that what rounding explains between shapes hides it: equal shapes show it."""
    model = fresh_model("llama").to(dtype)
    HFTarget(model)
    for layer in model.model.layers:
        layer.mlp.down_proj = SharedScale(layer.mlp.down_proj, levels)
    with pytest.raises(UnsupportedTarget, match=r"sibling's token"):
        HFTarget(model)
