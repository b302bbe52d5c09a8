"""Tapped features are the outputs of the layers named, and tapping leaves the model untouched."""

import threading

import pytest
import torch

from draftwood.core.build import build_component
from draftwood.core.errors import PairingError, UnsupportedTarget
from draftwood.core.generation import Pipeline
from draftwood.core.hf import HFTarget
from draftwood.core.interfaces import BudgetController
from draftwood.core.options import Sampling
from draftwood.core.proposals import FactorizedProposal, Vocabulary
from draftwood.core.registry.plugin import Kind
from draftwood.core.tree import TokenTree
from draftwood.core.values import Limits
from draftwood.plugins.verifiers.match import Match
from draftwood.testing import OracleDrafter
from draftwood.testing.oracle import OracleDraftSession

TREE = TokenTree.from_lists([3, 4, 5], [-1, 0, 0], [0, 1, 1], [0.0] * 3)


def hooks_on(model):
    return sum(len(module._forward_hooks) for module in model.modules())


@pytest.mark.covers("tapped-layers")
def test_each_tap_reads_its_own_layer(fresh_model):
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


def test_no_hook_stays_on_the_model(fresh_model):
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


def test_two_targets_on_one_model_record_only_their_own_forwards(tiny_model):
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
    expected = target.open(taps=[1]).prefill([1, 2, 3]).features

    def intrude(*_):
        if threading.current_thread() is threading.main_thread():
            other = threading.Thread(target=lambda: model(torch.tensor([[9, 9, 9]])))
            other.start()
            other.join()

    model.model.layers[2].register_forward_hook(intrude)
    assert torch.equal(session.prefill([1, 2, 3]).features, expected)


@pytest.mark.covers("tapped-layers")
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


class Recording(OracleDrafter):
    """Knows the text, with every second token in second place; keeps what it was given."""

    taps = (2, 0)

    def __init__(self, text):
        logits = torch.zeros(len(text) + 4, 61)
        for place, token in enumerate(text):
            logits[place, token] = 7.0
            logits[place, (token + 1) % 61] = 8.0 * (place % 2)
        distributions = [
            FactorizedProposal(logits[at : at + 4], Sampling(), Vocabulary(61))
            for at in range(len(text))
        ]
        super().__init__(lambda prefix, sampling: distributions[len(prefix)])
        self.tokens, self.features = [], []

    def open(self, target, sampling):
        drafter = self

        class Session(OracleDraftSession):
            def commit(self, tokens, features):
                super().commit(tokens, features)
                assert len(tokens) == len(features)
                drafter.tokens += tokens
                drafter.features.append(features)

        return Session(sampling)


class Every(BudgetController):
    """Drafts in every n-th round."""

    def __init__(self, rounds):
        self.rounds = rounds

    def init(self, costs):
        return None

    def open(self):
        return None

    def before_draft(self, ctx, state):
        return Limits(0 if ctx.round % self.rounds else 12)


@pytest.mark.parametrize("rounds", [1, 4])
def test_drafters_are_given_the_features_of_the_committed_tokens(rounds, fresh_model):
    """Whatever nodes of the trees they were, a fresh prefill of the text has the same."""
    target = HFTarget(fresh_model("qwen3"))
    prompt = [7, 3, 30, 12, 5]
    plain = Pipeline(target).generate(prompt, max_new_tokens=60, eos_token_id=())
    drafter = Recording([*prompt, *plain.tokens])
    tree = build_component(Kind.TREE, "best_first", max_nodes=12)
    paths = []
    pipeline = Pipeline(
        target,
        drafter,
        tree,
        Every(rounds),
        Match(),
        observers=[lambda stats: paths.append(stats.verdict.accepted)],
    )
    found = pipeline.generate(prompt, max_new_tokens=60, eos_token_id=())
    assert found.tokens == plain.tokens
    # Else the tree's first rows would do.
    assert sum(path != tuple(range(len(path))) for path in paths) >= 3
    assert len(drafter.tokens) > 40
    text = [*prompt, *plain.tokens][: len(drafter.tokens)]
    assert drafter.tokens == text
    expected = target.open(taps=drafter.taps).prefill(text).features
    torch.testing.assert_close(torch.cat(drafter.features), expected, rtol=0, atol=1e-9)
