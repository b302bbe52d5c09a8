"""What cannot be rolled back or cannot score a tree is refused at load, with the reason."""

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    BertConfig,
    BigBirdConfig,
    BloomConfig,
    GPTNeoConfig,
    Lfm2Config,
    MambaConfig,
    OpenAIGPTConfig,
    Qwen3NextConfig,
    T5Config,
)

from draftwood.core.errors import UnsupportedTarget
from draftwood.core.hf import HFTarget
from draftwood.core.hf.masks import Masks
from draftwood.core.hf.rope import position_limit
from draftwood.core.hf.self_check import self_check

SMALL = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48}
REFUSED = {
    "recurrent state": lambda: MambaConfig(**SMALL, state_size=4),
    "of kind conv": lambda: Lfm2Config(
        **SMALL, **HEADS, layer_types=["conv", "full_attention"], block_ff_dim=48
    ),
    "recurrent state|linear_attention": lambda: Qwen3NextConfig(
        **SMALL,
        **HEADS,
        head_dim=8,
        layer_types=["linear_attention", "full_attention"],
        num_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
    ),
    "of kind global, local": lambda: GPTNeoConfig(
        vocab_size=61,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
    ),
    "no position_ids": lambda: BloomConfig(vocab_size=61, hidden_size=32, n_layer=2, n_head=4),
}


@pytest.mark.parametrize("reason", list(REFUSED))
def test_an_architecture_that_cannot_be_rolled_back_is_refused(reason):
    model = AutoModelForCausalLM.from_config(REFUSED[reason]()).eval()
    with pytest.raises(UnsupportedTarget, match=reason):
        HFTarget(model)


def test_an_encoder_decoder_is_refused():
    config = T5Config(vocab_size=61, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4)
    model = AutoModelForSeq2SeqLM.from_config(config).eval()
    with pytest.raises(UnsupportedTarget, match="encoder-decoder"):
        HFTarget(model)


def test_chunked_attention_is_refused(fresh_model):
    model = fresh_model("llama")
    model.config.layer_types = ["chunked_attention"] * 4
    with pytest.raises(UnsupportedTarget, match="chunked_attention"):
        HFTarget(model)


def test_a_quantized_cache_is_refused(fresh_model):
    model = fresh_model("llama")
    model.generation_config.cache_implementation = "quantized"
    with pytest.raises(UnsupportedTarget, match="quantized cache"):
        HFTarget(model)


def test_an_attention_without_tree_masks_is_refused_with_the_choices(fresh_model):
    model = fresh_model("llama")
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(UnsupportedTarget, match=r"flash_attention_2.*choices: sdpa, eager"):
        HFTarget(model)


def test_training_mode_is_refused(fresh_model):
    with pytest.raises(UnsupportedTarget, match=r"call model.eval\(\)"):
        HFTarget(fresh_model("gpt2").train())


class WithoutMask(Masks):
    """A model that ignores the mask it is given sees what this builds."""

    def build(self, visible, depths, length, behind=None):
        mask = super().build(visible, depths, length, behind)
        return None if mask is None else torch.zeros_like(mask)


@pytest.mark.covers("mask-type")
def test_the_check_rejects_a_model_that_ignores_tree_masks(fresh_model, attention):
    target = HFTarget(fresh_model("llama", attention), check=False)
    self_check(target, target.scorer)
    masks = target.scorer.masks
    target.scorer.masks = WithoutMask(masks.windows, masks.by_kind, masks.dtype, masks.device)
    with pytest.raises(UnsupportedTarget, match=r"sibling's token|same text"):
        self_check(target, target.scorer)


def test_the_check_rejects_a_model_that_ignores_positions(fresh_model):
    model = fresh_model("gpt2")
    target = HFTarget(model, check=False)
    forward = model.transformer.wpe.forward
    model.transformer.wpe.forward = lambda p: forward(torch.arange(p.shape[1])[None] + p[0, 0])
    with pytest.raises(UnsupportedTarget, match="same text"):
        self_check(target, target.scorer)


def test_the_check_rejects_a_cache_that_does_not_move_rows(fresh_model, monkeypatch):
    from draftwood.core.hf.cache import TreeCache

    target = HFTarget(fresh_model("llama"), check=False)
    monkeypatch.setattr(TreeCache, "commit", lambda self, path, *_: self.advance(len(path)))
    with pytest.raises(UnsupportedTarget, match="committed branch"):
        self_check(target, target.scorer)


def test_the_check_names_what_a_model_raises(fresh_model):
    model = fresh_model("llama")
    target = HFTarget(model, check=False)
    model.lm_head.forward = lambda x: x.not_a_method()
    with pytest.raises(UnsupportedTarget, match=r"cannot score a tree.*AttributeError"):
        self_check(target, target.scorer)


@pytest.mark.parametrize(
    ("rope", "limit"),
    [
        ({"rope_type": "default"}, 4096),
        ({"rope_type": "dynamic", "original_max_position_embeddings": 512}, 512),
        ({"rope_type": "longrope", "original_max_position_embeddings": 1024}, 1024),
        ({"rope_type": "dynamic"}, 4096),
    ],
)
def test_rotary_embeddings_that_rescale_are_limited_to_where_they_do_not(rope, limit):
    class Config:
        max_position_embeddings = 4096
        rope_parameters = rope

    assert position_limit(Config).positions == limit


BERT = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


@pytest.mark.covers("other-text-by-architecture")
def test_a_model_that_attends_in_both_directions_is_refused():
    model = AutoModelForCausalLM.from_config(BertConfig(**BERT, intermediate_size=48)).eval()
    with pytest.raises(UnsupportedTarget, match="own forward without a cache"):
        HFTarget(model)
    model = AutoModelForCausalLM.from_config(
        BertConfig(**BERT, intermediate_size=48, is_decoder=True)
    )
    HFTarget(model.eval())


@pytest.mark.covers("other-text-by-architecture")
def test_block_sparse_attention_is_refused_with_what_to_set():
    config = BigBirdConfig(**BERT, intermediate_size=48, is_decoder=True)
    with pytest.raises(UnsupportedTarget, match="attention_type to original_full"):
        HFTarget(AutoModelForCausalLM.from_config(config).eval())


def test_a_model_that_keeps_no_cache_is_refused():
    config = OpenAIGPTConfig(vocab_size=61, n_embd=32, n_layer=2, n_head=4)
    with pytest.raises(UnsupportedTarget, match="keeps no cache"):
        HFTarget(AutoModelForCausalLM.from_config(config).eval())


@pytest.mark.parametrize("error", [AssertionError("sizes"), ZeroDivisionError(), ImportError("x")])
def test_whatever_a_model_raises_becomes_the_reason(fresh_model, error):
    model = fresh_model("llama")

    def fail(*_, **__):
        raise error

    model.lm_head.forward = fail
    with pytest.raises(UnsupportedTarget, match=type(error).__name__):
        HFTarget(model)


def test_a_lack_of_memory_is_no_reason_to_refuse_a_model(fresh_model):
    model = fresh_model("llama")

    def fail(*_, **__):
        raise torch.OutOfMemoryError

    model.lm_head.forward = fail
    with pytest.raises(torch.OutOfMemoryError):
        HFTarget(model)


def test_end_tokens_come_from_the_generation_config(fresh_model):
    model = fresh_model("llama")
    assert HFTarget(model).eos_token_ids == frozenset()
    model.generation_config.eos_token_id = 5
    assert HFTarget(model).eos_token_ids == {5}
    model.generation_config.eos_token_id = [5, 7]
    assert HFTarget(model).eos_token_ids == {5, 7}
