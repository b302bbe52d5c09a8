"""Prices of forwards: what they hold for, how they grow, and that asking disturbs nothing."""

import itertools
import json
import time

import pytest
import torch
from transformers import AutoModelForCausalLM, MixtralConfig

from draftwood.core.hf import HFTarget
from draftwood.core.tree import TokenTree


def test_the_identity_names_model_device_and_dtype(tiny_target):
    a, b = (tiny_target(n).costs(time.perf_counter).identity for n in ("llama", "qwen3"))
    names = {"device", "dtype", "model", "config", "attention", "torch", "transformers", "threads"}
    assert set(a) == names
    assert a["dtype"] == "float64"
    assert a["config"] != b["config"]
    json.dumps(a)


def test_seconds_come_from_the_clock_given(tiny_target):
    ticks = itertools.count(0.0, 0.25)
    costs = tiny_target("gemma3").costs(lambda: next(ticks))
    assert [costs.seconds(tokens, 30) for tokens in (1, 4, 4)] == [0.25] * 3


def test_timing_does_not_touch_sessions_that_are_open(tiny_target):
    target = tiny_target("mistral")
    session, step = target.open(), TokenTree.root(4)
    session.prefill([1, 2, 3])
    before = target.forward([(session, step)])[0].logits.clone()
    costs = target.costs(time.perf_counter)
    assert 0 < costs.seconds(8, 50) < 5
    assert costs.seconds(1, 3) > 0
    assert session.length == 3
    assert torch.equal(target.forward([(session, step)])[0].logits, before)


def test_a_forward_at_the_context_limit_can_be_timed(tiny_target):
    target = tiny_target("gpt2")
    assert target.costs(time.perf_counter).seconds(8, 312) > 0


@pytest.mark.parametrize("tokens", [1, 2, 16])
def test_flops_count_each_weight_twice_and_attention_by_visible_keys(tokens, tiny_target):
    target = tiny_target("llama")
    weights = sum(p.numel() for p in target.model.parameters()) - 61 * 32  # the embedding's rows
    attention = 4 * 4 * 4 * 8 * tokens * (100 + tokens)  # layers, two products, heads, width
    assert target.costs(time.time).flops(tokens, 100) == 2 * weights * tokens + attention


def test_both_counts_are_quadratics_in_tokens(tiny_target):
    costs = tiny_target("llama").costs(time.time)
    for count in (costs.flops, costs.bytes):
        a, b, c, d = (count(s, 64) for s in (1, 2, 3, 4))
        assert a < b < c < d
        assert (c - b) - (b - a) == (d - c) - (c - b)


def test_flops_of_sliding_layers_stop_growing_past_the_window(tiny_target):
    full, sliding = (tiny_target(n).costs(time.time) for n in ("llama", "mistral"))
    assert full.flops(4, 1000) > full.flops(4, 100)
    assert sliding.flops(4, 1000) == sliding.flops(4, 100)
    assert sliding.bytes(4, 1000) == sliding.bytes(4, 100)


def test_tied_embeddings_count_as_the_head(fresh_model):
    def weights(**changes):
        model = fresh_model("llama", **changes)
        return HFTarget(model).costs(time.time).flops(1, 0)

    assert weights(tie_word_embeddings=True) == weights(tie_word_embeddings=False)


def test_experts_count_by_the_share_that_a_token_is_routed_to():
    def flops(routed):
        config = MixtralConfig(
            vocab_size=61,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=2,
            num_local_experts=4,
            num_experts_per_tok=routed,
        )
        model = AutoModelForCausalLM.from_config(config).eval()
        return HFTarget(model).costs(time.time).flops(1, 0)

    expert = 2 * 3 * 32 * 48
    assert flops(4) - flops(1) == 3 * expert


def test_peaks_are_measured_quickly(tiny_target):
    before = time.perf_counter()
    flops, bandwidth = tiny_target("llama", dtype=torch.float32).costs(time.time).peaks()
    assert time.perf_counter() - before < 3  # a third of a second on an idle machine
    assert 1e8 < flops < 1e16
    assert 1e7 < bandwidth < 1e14
