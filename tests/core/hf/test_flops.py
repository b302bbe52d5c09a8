"""Operations counted by tracing: right, for every architecture, and without touching the model."""

import pytest
import torch

from draftwood.core.errors import UnsupportedTarget
from draftwood.core.hf.flops import TracedFlops
from draftwood.testing import OracleTarget


def test_traced_flops_equal_the_closed_form(architecture, tiny_target):
    target = tiny_target(architecture)
    traced, closed = target.traced_flops(), target.costs(lambda: 0.0)
    for tokens, context in ((1, 64), (16, 64), (8, 200)):
        # The closed form also counts norms and biases, which are no products.
        window = architecture in ("mistral", "gemma3")
        share = 0.75 if window else 0.9
        assert share < traced(tokens, context) / closed.flops(tokens, context) < 1.25


def test_products_are_counted_exactly(tiny_target):
    """Every weight matrix twice per token, and two products per visible key."""
    target = tiny_target("llama")
    weights = sum(
        p.numel() for n, p in target.model.named_parameters() if p.ndim == 2 and "embed" not in n
    )
    if "lm_head.weight" not in dict(target.model.named_parameters()):
        weights += target.head_weight().numel()
    attention = 4 * 4 * 4 * 8 * 16 * (100 + 16)  # layers, two products, heads, width
    assert target.traced_flops()(16, 100) == 2 * weights * 16 + attention


def test_traced_flops_are_a_quadratic_in_tokens(tiny_target):
    count = tiny_target("qwen3").traced_flops()
    a, b, c, d = (count(s, 64) for s in (1, 2, 3, 4))
    assert (c - b) - (b - a) == (d - c) - (c - b) > 0


def test_tracing_leaves_the_models_attention_and_weights(tiny_target):
    target = tiny_target("llama")
    before = {name: value.clone() for name, value in target.model.state_dict().items()}
    TracedFlops(target)(4, 10)
    assert target.model.config._attn_implementation == "sdpa"
    assert {value.device.type for value in target.model.parameters()} == {"cpu"}
    assert all(torch.equal(value, before[n]) for n, value in target.model.state_dict().items())


def test_tracing_a_target_without_a_model_is_refused():
    with pytest.raises(UnsupportedTarget, match="OracleTarget cannot be traced"):
        OracleTarget(2, lambda prefix: [1.0, 1.0]).traced_flops()
