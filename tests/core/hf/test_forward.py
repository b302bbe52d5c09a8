"""A tree's logits are those of its paths, under every architecture and attention offered."""

import random

import pytest
import torch

from draftwood.core.errors import RequestError
from draftwood.core.tree import TokenTree


def bound(dtype, attention="sdpa"):
    """eager computes its softmax in float32 whatever the model's dtype."""
    if dtype == torch.float32:
        return 2e-5
    return 1e-10 if attention == "sdpa" else 1e-5


def prompt_of(length, seed=1):
    rng = random.Random(seed)
    return [rng.randrange(61) for _ in range(length)]


# Around and past the window of 7: shorter, one off, equal, straddled by the tree, far beyond.
@pytest.mark.covers("sliding-window")
@pytest.mark.parametrize("length", [1, 5, 6, 7, 8, 20])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_each_node_scores_like_its_own_path_alone(
    architecture, attention, dtype, length, tiny_model, tiny_target, random_tree, alone
):
    target, model = (f(architecture, attention, dtype) for f in (tiny_target, tiny_model))
    prompt, rng = prompt_of(length), random.Random(length)
    for nodes in (1, 6, 14):
        session, tree = target.open(), random_tree(nodes, rng)
        session.prefill(prompt)
        logits = target.forward([(session, tree)])[0].logits
        for node in range(nodes + 1):
            text = prompt + [tree.token_list[i] for i in tree.path(node)]
            assert (alone(model, text)[-1] - logits[node]).abs().max() < bound(dtype, attention)


def test_a_chain_deeper_than_the_window_scores_like_text(
    architecture, attention, tiny_model, tiny_target, alone
):
    target, model = tiny_target(architecture, attention), tiny_model(architecture, attention)
    prompt, drafts = prompt_of(3), prompt_of(20, seed=2)
    tree = TokenTree.from_lists(drafts, list(range(-1, 19)), list(range(20)), [0.0] * 20)
    session = target.open()
    session.prefill(prompt)
    logits = target.forward([(session, tree)])[0].logits
    assert (alone(model, prompt + drafts)[3:] - logits).abs().max() < bound(
        torch.float64, attention
    )


@pytest.mark.covers("mask-type")
def test_a_siblings_token_does_not_move_other_branches(
    architecture, attention, tiny_target, random_tree
):
    target, rng = tiny_target(architecture, attention), random.Random(3)
    session = target.open()
    session.prefill(prompt_of(10))
    for _ in range(5):
        tree = random_tree(9, rng)
        changed = rng.randrange(1, 10)
        tokens = list(tree.token_list)
        tokens[changed] = (tokens[changed] + 1) % 61
        other = TokenTree.from_lists(tokens, tree.parent_list, tree.depth_list, [0.0] * 10)
        a, b = (target.forward([(session, t)])[0].logits for t in (tree, other))
        for node in range(10):
            moved = (a[node] - b[node]).abs().max()
            assert moved > 1e-6 if changed in tree.path(node) else moved < 1e-12


def test_a_second_forward_replaces_the_first(tiny_target, random_tree):
    target, rng = tiny_target("gemma3"), random.Random(4)
    session, tree = target.open(), random_tree(5, rng)
    session.prefill(prompt_of(9))
    first = target.forward([(session, tree)])[0].logits.clone()
    target.forward([(session, random_tree(12, rng))])
    assert torch.equal(target.forward([(session, tree)])[0].logits, first)


def test_a_prompt_in_chunks_equals_a_prompt_at_once(
    architecture, attention, tiny_model, tiny_target, alone
):
    target, model = tiny_target(architecture, attention), tiny_model(architecture, attention)
    prompt = prompt_of(23)
    expected = alone(model, prompt)[-1:]
    before = target.prefill_chunk
    try:
        for chunk in (1, 4, 22, 23, 64):
            target.prefill_chunk = chunk
            session = target.open(taps=[1])
            found = session.prefill(prompt)
            assert found.logits.shape == (1, 61)
            assert found.features.shape == (23, 32)
            assert (found.logits - expected).abs().max() < bound(torch.float64, attention)
    finally:
        target.prefill_chunk = before


def test_a_forward_over_several_requests_is_refused(tiny_target):
    target = tiny_target("llama")
    work = [(target.open(), TokenTree.root(1))] * 2
    with pytest.raises(NotImplementedError, match="2 requests"):
        target.forward(work)


def test_positions_past_the_limit_are_a_request_error(tiny_target):
    target = tiny_target("gpt2")
    assert target.max_context == 320
    session = target.open()
    session.prefill([1] * 319)
    target.forward([(session, TokenTree.root(1))])
    with pytest.raises(RequestError, match="past the 320"):
        target.forward([(session, TokenTree.from_lists([1, 2], [-1, 0], [0, 1], [0.0, 0.0]))])
    with pytest.raises(RequestError, match="past the 320"):
        target.open().prefill([1] * 321)


def test_padding_rows_are_never_emitted(fresh_model):
    from draftwood.core.hf import HFTarget

    target = HFTarget(fresh_model("llama"), vocab_limit=50)
    session = target.open()
    logits = session.prefill([1, 2]).logits
    logits = torch.cat([logits, target.forward([(session, TokenTree.root(3))])[0].logits])
    assert logits.shape == (2, 61)
    assert logits[:, 50:].max() == -torch.inf
    assert logits[:, :50].isfinite().all()
