"""A tree scored level by level, each node once, is the tree scored whole."""

import random

import pytest
import torch

from draftwood.core.errors import TreeError
from draftwood.core.tree import TokenTree

BOUND = {"sdpa": 1e-10, "eager": 1e-5}


def prompt_of(length):
    rng = random.Random(length)
    return [rng.randrange(61) for _ in range(length)]


def by_levels(target, session, tree):
    """(N+1, V) logits in the tree's own order, from one pass a level; and the nodes in the order
    they were run."""
    order = sorted(range(len(tree)), key=lambda node: (tree.depth_list[node], node))
    place = {node: i for i, node in enumerate(order)}
    found = {}
    for depth in range(max(tree.depth_list) + 1):
        level = [node for node in order if tree.depth_list[node] == depth]
        seen = torch.zeros(len(level), place[level[-1]] + 1, dtype=torch.bool)
        for row, node in enumerate(level):
            seen[row, [place[i] for i in tree.path(node)]] = True
        tokens = tree.tokens[level]
        logits = session.deepen(tokens, torch.full((len(level),), depth), seen)
        found |= dict(zip(level, logits, strict=True))
    return torch.stack([found[node] for node in range(len(tree))]), order


# Around and past the window of 7, and past the rows that are reserved at first.
@pytest.mark.parametrize("length", [1, 6, 9, 250])
def test_levels_score_like_the_whole_tree(
    architecture, attention, length, tiny_target, random_tree
):
    target, rng = tiny_target(architecture, attention), random.Random(length)
    whole, level = target.open(), target.open()
    for session in (whole, level):
        session.prefill(prompt_of(length))
    for nodes in (3, 20):
        tree = random_tree(nodes, rng)
        expected = target.forward([(whole, tree)])[0].logits
        found, order = by_levels(target, level, tree)
        assert (found - expected).abs().max() < BOUND[attention]
        # Either way the accepted path is kept, and the rest leaves no trace.
        path = tree.path(rng.randrange(nodes + 1))
        whole.commit(path)
        level.commit([order.index(node) for node in path])
        assert level.length == whole.length
        assert level.pending == 0
    root = TokenTree.root(5)
    one, other = (target.forward([(session, root)])[0].logits for session in (whole, level))
    assert (one - other).abs().max() < BOUND[attention]


def test_a_forward_drops_the_levels_scored_before(tiny_target):
    target = tiny_target("llama")
    session = target.open()
    session.prefill(prompt_of(4))
    seen = torch.eye(2, dtype=torch.bool)
    session.deepen(torch.tensor([7, 8]), torch.zeros(2, dtype=torch.int64), seen)
    assert session.pending == 2
    again = target.forward([(session, TokenTree.root(9))])[0].logits
    assert session.pending == 1
    with pytest.raises(TreeError, match="a forward over 1"):
        session.commit([0, 1])
    fresh = target.open()
    fresh.prefill(prompt_of(4))
    assert torch.equal(again, target.forward([(fresh, TokenTree.root(9))])[0].logits)


def test_another_visibility_changes_the_logits(tiny_target):
    """Negative control: a node that sees its uncle scores otherwise."""
    target, found = tiny_target("llama"), []
    for uncle in (False, True):
        session = target.open()
        session.prefill(prompt_of(4))
        level = torch.eye(2, dtype=torch.bool)
        session.deepen(torch.tensor([7, 8]), torch.zeros(2, dtype=torch.int64), level)
        seen = torch.tensor([[True, uncle, True]])
        found.append(session.deepen(torch.tensor([3]), torch.tensor([1]), seen))
    assert (found[0] - found[1]).abs().max() > 1e-3
