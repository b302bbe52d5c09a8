"""A verifier's own attention runs in its sessions' forwards and nowhere else, told what rows see
by keyword arguments."""

import random
import threading

import pytest
import torch

from draftwood.core.errors import UnsupportedTarget
from draftwood.core.hf import HFTarget
from draftwood.core.hf.attention import running
from draftwood.core.kernels.tree_mask import ancestor_words
from draftwood.core.tree import TokenTree


def seen_by(mask, rows, window):
    """(rows, context + nodes) bool, from the definition of a TreeMask."""
    context, nodes = int(mask.context), mask.first + rows
    depths = torch.arange(nodes) if mask.depths is None else mask.depths
    if mask.ancestors is None:
        own = torch.ones(rows, nodes, dtype=torch.bool).tril(mask.first)
    else:
        bits = mask.ancestors[:, :, None] >> torch.arange(32)
        own = (bits & 1).bool().flatten(1)[:, :nodes]
    seen = torch.cat([torch.ones(rows, context, dtype=torch.bool), own], 1)
    positions = torch.cat([torch.arange(-context, 0), depths])
    if window is not None:
        seen &= depths[mask.first :, None] - positions < window
    return seen


class Dense:
    """Kernels in torch alone: what they must compute, in any dtype."""

    def __init__(self):
        self.calls = []

    def ancestors(self, parents):
        tree = TokenTree.from_lists(parents.tolist(), parents.tolist(), [0] * len(parents), [0.0])
        return torch.from_numpy(ancestor_words(tree.ancestors()))

    def attend(self, query, keys, values, mask, *, scaling, window=None, softcap=None):
        rows = query.shape[1]
        self.calls.append((rows, int(mask.context), window))
        seen = seen_by(mask, rows, window)
        group = query.shape[0] // keys.shape[0]
        keys, values = (
            part[:, : seen.shape[1]].repeat_interleave(group, 0) for part in (keys, values)
        )
        scores = query @ keys.mT * scaling
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        probs = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        return (probs @ values).transpose(0, 1).contiguous()

    def compact(self, stacks, length, path):
        for stack in stacks:
            stack[:, :, :, length : length + len(path)] = stack[:, :, :, [length + i for i in path]]

    def launches(self):
        return {"dense": len(self.calls)}


@pytest.mark.parametrize("length", [1, 2, 6, 7, 8, 30])
def test_kernels_give_the_logits_of_the_models_own_attention(
    architecture, length, tiny_target, random_tree
):
    target, rng = tiny_target(architecture), random.Random(length)
    kernels = Dense()
    plain, own = target.open((1,)), target.open((1,), kernels)
    prompt = [rng.randrange(61) for _ in range(length)]
    expected, found = plain.prefill(prompt), own.prefill(prompt)
    for nodes in (0, 3, 33, 70):
        tree = random_tree(nodes, rng)
        expected, found = (target.forward([(session, tree)])[0] for session in (plain, own))
        torch.testing.assert_close(found.logits, expected.logits, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(found.features, expected.features, rtol=1e-9, atol=1e-9)
        path = tree.path(rng.randrange(nodes + 1))
        plain.commit(path)
        own.commit(path)
    assert {rows for rows, *_ in kernels.calls} >= {1, 4, 34, 71}


def test_levels_are_masked_by_their_visibility(tiny_target, random_tree):
    target, rng = tiny_target("gemma3"), random.Random(3)
    tree = random_tree(40, rng)
    order = sorted(range(len(tree)), key=lambda node: (tree.depth_list[node], node))
    seen = tree.ancestors()[order][:, order]
    depths = tree.depths[order]
    logits = []
    for session in (target.open(), target.open(kernels=Dense())):
        session.prefill(list(range(9)))
        found = []
        for depth in range(int(depths.max()) + 1):
            level = torch.nonzero(depths == depth).flatten()
            stop = int(level[-1]) + 1
            tokens = tree.tokens[order][level]
            found.append(session.deepen(tokens, depths[level], seen[level, :stop]))
        logits.append(torch.cat(found))
    torch.testing.assert_close(logits[1], logits[0], rtol=1e-9, atol=1e-9)


def test_only_sessions_opened_with_kernels_use_them(fresh_model):
    model = fresh_model("llama")
    target, kernels = HFTarget(model), Dense()
    tree = TokenTree.from_lists([3, 4, 5], [-1, 0, 0], [0, 1, 1], [0.0] * 3)
    plain, own = target.open(), target.open(kernels=kernels)
    kernels.calls.clear()  # those of the check
    plain.prefill([1, 2])
    target.forward([(plain, tree)])
    assert kernels.calls == []
    own.prefill([1, 2])
    target.forward([(own, tree)])
    own.commit([0, 2])
    target.forward([(own.fork(), TokenTree.root(6))])
    assert kernels.calls == [(2, 0, None)] * 4 + [(3, 2, None)] * 4 + [(1, 4, None)] * 4
    assert model.config._attn_implementation == "sdpa"


def test_a_forward_of_another_thread_keeps_its_own_attention(fresh_model, alone):
    model = fresh_model("mistral")
    ids = list(range(20))
    expected, found = alone(model, ids), []
    with running(model.config):
        other = threading.Thread(target=lambda: found.append(alone(model, ids)))
        other.start()
        other.join()
    torch.testing.assert_close(found[0], expected)


def test_an_attention_that_adds_to_scores_is_refused(fresh_model):
    class Half(Dense):
        def attend(self, query, *args, scaling, **options):
            return super().attend(query, *args, scaling=scaling / 2, **options)

    target = HFTarget(fresh_model("llama"))
    with pytest.raises(UnsupportedTarget, match="differ from those of its own attention"):
        target.open(kernels=Half())
    with pytest.raises(UnsupportedTarget, match="differ from those"):  # as often as it is asked
        target.open(kernels=Half())
    target.open(kernels=Dense())


def test_a_model_that_drops_forward_keywords_is_refused(fresh_model):
    model = fresh_model("llama")
    inner = model.model.layers[2].self_attn
    forward = inner.forward
    inner.forward = lambda *args, tree_attention=None, **options: forward(*args, **options)
    with pytest.raises(UnsupportedTarget, match="keyword arguments"):
        HFTarget(model).open(kernels=Dense())


def test_a_layer_outside_the_attention_interface_is_refused(fresh_model):
    model = fresh_model("llama")
    inner = model.model.layers[2].self_attn
    inner.forward = lambda hidden_states, **options: (hidden_states, None)
    with pytest.raises(UnsupportedTarget, match="3 of its 4 layers"):
        HFTarget(model, check=False).open(kernels=Dense())


def test_attention_sinks_are_refused_by_name(fresh_model):
    model = fresh_model("llama")
    for layer in model.model.layers:
        forward = layer.self_attn.forward
        layer.self_attn.forward = lambda *args, forward=forward, **options: forward(
            *args, s_aux=torch.zeros(4), **options
        )
    target = HFTarget(model)
    with pytest.raises(UnsupportedTarget, match="s_aux"):
        target.open(kernels=Dense())
