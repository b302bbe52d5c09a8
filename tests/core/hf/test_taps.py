"""Tapped features are the outputs of the layers named, and tapping leaves the model untouched."""

import threading

import pytest
import torch

from draftwood.core.errors import PairingError, UnsupportedTarget
from draftwood.core.hf import HFTarget
from draftwood.core.values import TokenTree

TREE = TokenTree.of([3, 4, 5], [-1, 0, 0], [0, 1, 1], [0.0] * 3)


def hooks_on(model):
    return sum(len(module._forward_hooks) for module in model.modules())


def test_canary_each_tap_reads_its_own_layer(fresh_model):
    """Layer i outputs the constant i + 1 (and the final norm adds 100)."""
    model = fresh_model("llama")
    for index, layer in enumerate(model.model.layers):
        layer.forward = lambda x, value=index + 1.0, **_: torch.full_like(x, value)
    model.model.norm.forward = lambda x: x + 100
    target = HFTarget(model, check=False)
    session = target.open(taps=[2, 0, 3])
    expected = torch.tensor([3.0, 1.0, 104.0], dtype=torch.float64).repeat_interleave(32)
    for features in (
        session.prefill([1, 2]).features,
        target.forward([(session, TREE)])[0].features,
    ):
        assert (features == expected).all()


def test_taps_are_hidden_states_after_each_layer(architecture, attention, tiny_model, tiny_target):
    model, target = tiny_model(architecture, attention), tiny_target(architecture, attention)
    with torch.inference_mode():
        text = torch.tensor([[1, 2, 3]])
        states = model(text, output_hidden_states=True, use_cache=False).hidden_states
    assert len(states) == 5
    for taps in ([0], [3], [0, 1, 2, 3]):
        features = target.open(taps=taps).prefill([1, 2, 3]).features
        expected = torch.cat([states[layer + 1][0] for layer in taps], -1)
        assert (features - expected).abs().max() < 1e-10


def test_nothing_stays_on_the_model(fresh_model):
    model = fresh_model("qwen3")
    before = set(vars(model)), model.config.to_dict()
    target = HFTarget(model)
    session = target.open(taps=[0, 3])
    session.prefill([1, 2])
    target.forward([(session, TREE)])
    assert hooks_on(model) == 0
    assert (set(vars(model)), model.config.to_dict()) == before
    model.model.layers[0].forward = None  # a forward that raises must clean up, too
    with pytest.raises(TypeError):
        target.forward([(session, TREE)])
    assert hooks_on(model) == 0


def test_without_taps_nothing_is_hooked_or_returned(fresh_model):
    model = fresh_model("gpt2")
    target = HFTarget(model)
    session, seen = target.open(), []
    model.transformer.h[0].attn.register_forward_pre_hook(lambda *_: seen.append(hooks_on(model)))
    assert session.prefill([1, 2]).features is None
    assert target.forward([(session, TREE)])[0].features is None
    assert seen == [0, 0]


def test_two_targets_on_one_model_do_not_meet(tiny_model):
    model = tiny_model("gemma3")
    first, second = HFTarget(model), HFTarget(model)
    a, b = first.open(taps=[0]), second.open(taps=[2, 3])
    a.prefill([1, 2, 3])
    b.prefill([4, 5])
    alone = HFTarget(model).open(taps=[0])
    alone.prefill([1, 2, 3])
    mine = first.forward([(a, TREE)])[0]
    second.forward([(b, TREE)])
    expected = first.forward([(alone, TREE)])[0]
    assert torch.equal(mine.features, expected.features)
    assert torch.equal(mine.logits, expected.logits)


def test_a_forward_in_another_thread_is_not_recorded(fresh_model):
    model = fresh_model("llama")
    target = HFTarget(model)
    session = target.open(taps=[1])
    expected = session.fork().target.open(taps=[1]).prefill([1, 2, 3]).features

    def intrude(*_):
        if threading.current_thread() is threading.main_thread():
            other = threading.Thread(target=lambda: model(torch.tensor([[9, 9, 9]])))
            other.start()
            other.join()

    model.model.layers[2].register_forward_hook(intrude)
    assert torch.equal(session.prefill([1, 2, 3]).features, expected)


@pytest.mark.parametrize("layer", [-1, 4, 99])
def test_layers_that_do_not_exist_cannot_be_tapped(layer, tiny_target):
    with pytest.raises(PairingError, match="layers 0 to 3"):
        tiny_target("llama").open(taps=[0, layer])


def test_layers_with_several_states_per_token_cannot_be_tapped(fresh_model):
    model = fresh_model("llama")
    target = HFTarget(model)
    model.model.layers[1].register_forward_hook(lambda m, i, output: output[None], prepend=True)
    with pytest.raises(UnsupportedTarget, match="cannot be tapped"):
        target.open(taps=[1]).prefill([1, 2])
    assert hooks_on(model) == 1
