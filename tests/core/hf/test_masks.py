"""Masks say which node sees what, in numbers that every attention implementation reads alike."""

import random

import pytest
import torch

from draftwood.core.hf.masks import Masks, chain, full_mask, kind_windows, layer_kinds, sliding_mask

LOWEST = torch.finfo(torch.float32).min


def brute(tree, length, window):
    """visible[node][column] over context and nodes, from the definition."""
    rows = []
    for node, depth in enumerate(tree.depth_list):
        path = tree.path(node)
        positions = list(range(length)) + [length + d for d in tree.depth_list]
        rows.append(
            [
                (column < length or column - length in path)
                and (window is None or length + depth - position < window)
                for column, position in enumerate(positions)
            ]
        )
    return torch.tensor(rows)


@pytest.mark.covers("sliding-window")
@pytest.mark.parametrize("window", [None, 1, 3, 7, 50])
@pytest.mark.parametrize("length", [0, 1, 2, 3, 6, 7, 8, 40])
def test_masks_follow_the_definition(window, length, random_tree):
    rng = random.Random(length)
    for nodes in (1, 4, 12):
        tree = random_tree(nodes, rng)
        expected = brute(tree, length, window)
        if window is None:
            mask = full_mask(tree.ancestors(), length, torch.float32)
        else:
            mask = sliding_mask(tree.ancestors(), tree.depths, length, window, torch.float32)
        assert mask.shape[:3] == (1, 1, nodes + 1)
        hidden = expected.shape[1] - mask.shape[3]  # columns that the layer's view leaves out
        assert not expected[:, :hidden].any()
        assert torch.equal(mask[0, 0] == 0, expected[:, hidden:])
        assert set(mask.unique().tolist()) <= {0.0, LOWEST}


def test_a_window_longer_than_the_text_shares_the_full_mask(random_tree):
    masks = Masks({"full_attention": None, "sliding_attention": 64}, True, torch.float32, "cpu")
    tree = random_tree(5, random.Random(1))
    built = masks.build(tree.ancestors(), tree.depths, 10)
    assert built["full_attention"] is built["sliding_attention"]


def test_a_single_node_needs_no_mask():
    depths = torch.zeros(1, dtype=torch.int64)
    assert (
        Masks({"full_attention": None}, False, torch.float32, "cpu").build(None, depths, 9) is None
    )
    hybrid = Masks({"full_attention": None, "sliding_attention": 4}, True, torch.float32, "cpu")
    assert hybrid.build(None, depths, 9) == {"full_attention": None, "sliding_attention": None}


def test_rows_start_on_aligned_addresses():
    visible, _ = chain(5)
    mask = full_mask(visible, 30, torch.float32)
    assert mask.shape[-1] == 35
    assert mask.stride(-2) % 16 == 0


def test_kinds_are_read_or_inferred():
    class Config:
        num_hidden_layers = 2
        sliding_window = 5

    assert layer_kinds(Config) == ["sliding_attention"] * 2
    assert kind_windows(Config) == {"sliding_attention": 5}
    Config.layer_types = ["full_attention", "sliding_attention"]
    assert kind_windows(Config) == {"full_attention": None, "sliding_attention": 5}
