"""Tree attention equals soft-max attention with a dense mask in float64, element by element."""

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftwood.core.errors import UnsupportedTarget
from draftwood.core.kernels import tree_mask
from draftwood.core.kernels.launches import LAUNCHES
from draftwood.core.kernels.tree_mask import TreeMask
from draftwood.core.kernels.triton.attention.ancestors import ancestor_words
from draftwood.core.kernels.triton.attention.launch import attend
from draftwood.core.kernels.triton.attention.tiles import Tile
from draftwood.core.tree import TokenTree

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BOUND = {torch.float32: 1e-5, torch.float16: 2e-3}
"""Largest difference, relative to the largest element."""

UNWRITTEN = 9
"""Rows of the buffers behind the nodes: NaN."""


def tree_of(parents):
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    return TokenTree.from_lists([0] * len(parents), parents, depths, [0.0] * len(parents))


def random_tree(nodes, seed, reach=4):
    rng = random.Random(seed)
    return tree_of([-1, *(rng.randrange(max(0, i - reach), i) for i in range(1, nodes + 1))])


def mask_of(tree, context):
    length = torch.full((), context, dtype=torch.int32, device=DEVICE)
    words = ancestor_words(tree.parents.to(DEVICE))
    return TreeMask(length, context, 0, tree.depths.to(DEVICE), words)


def chain_mask(context):
    return TreeMask(torch.full((), context, dtype=torch.int32, device=DEVICE), context)


class Case:
    """Random queries, keys and values of one layer, with the expected attention."""

    def __init__(self, tree, context, heads=(2, 1), dim=16, dtype=torch.float32, seed=0):
        make = torch.Generator().manual_seed(seed)
        rows, (group, kv_heads) = len(tree), heads

        def normal(*shape):
            return torch.randn(*shape, generator=make).to(dtype)

        self.tree, self.context, self.dim = tree, context, dim
        # As a model's projections return them: the heads of a row are adjacent.
        self.query = normal(rows, group * kv_heads, dim).transpose(0, 1)
        self.keys, self.values = (
            normal(kv_heads, context + rows + UNWRITTEN, dim) for _ in range(2)
        )
        self.keys[:, context + rows :] = torch.nan
        self.values[:, context + rows :] = torch.nan
        self.scaling = dim**-0.5

    def run(self, mask=None, **options):
        """Write to an output of NaN, so that missing elements stay NaN."""
        heads, rows, dim = self.query.shape
        out = torch.full((rows, heads, dim), torch.nan, dtype=self.query.dtype, device=DEVICE)
        inputs = [part.to(DEVICE) for part in (self.query, self.keys, self.values)]
        mask = mask or mask_of(self.tree, self.context)
        return attend(*inputs, mask, scaling=self.scaling, out=out, **options).cpu()

    def expected(self, window=None, softcap=None, visible=None):
        """(rows, heads, dim) in float64, with a dense mask."""
        rows = self.query.shape[1]
        group = self.query.shape[0] // self.keys.shape[0]
        keys, values = (
            part[:, : self.context + rows].double().repeat_interleave(group, 0)
            for part in (self.keys, self.values)
        )
        scores = self.query.double() @ keys.mT * self.scaling
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        visible = self.tree.ancestors() if visible is None else visible
        seen = torch.cat([torch.ones(rows, self.context, dtype=torch.bool), visible], 1)
        if window is not None:
            positions = torch.cat([torch.arange(-self.context, 0), self.tree.depths])
            seen &= self.tree.depths[:, None] - positions < window
        probs = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        return (probs @ values).transpose(0, 1)


def error(found, expected):
    """Largest difference, relative to the largest element; NaN if any element is NaN."""
    return float((found.double() - expected).abs().max() / expected.abs().max())


def assert_same(found, expected):
    assert error(found, expected) <= BOUND[found.dtype]


TILES = st.sampled_from([Tile(16, 32, 4, 2), Tile(16, 64, 4, 2), Tile(32, 32, 4, 2)])


@given(st.data())
def test_attention_of_any_tree_context_and_heads_equals_the_definition(data):
    nodes = data.draw(st.integers(0, 36), "nodes")
    parents = [-1, *(data.draw(st.integers(max(0, i - 6), i - 1)) for i in range(1, nodes + 1))]
    context = data.draw(st.sampled_from([0, 1, 2, 31, 32, 33, 63, 64, 65, 100]), "context")
    heads = data.draw(st.sampled_from([(1, 1), (1, 2), (2, 2), (4, 1), (7, 1)]), "heads")
    dim = data.draw(st.sampled_from([8, 16, 64, 80]), "dim")
    dtype = data.draw(st.sampled_from([torch.float32, torch.float16]), "dtype")
    window = data.draw(st.none() | st.integers(1, 40) | st.just(1000), "window")
    softcap = data.draw(st.none() | st.sampled_from([0.5, 20.0]), "softcap")
    tile, splits = data.draw(TILES, "tile"), data.draw(st.sampled_from([1, 1, 2, 3, 7]), "splits")
    case = Case(tree_of(parents), context, heads, dim, dtype, seed=nodes)
    found = case.run(window=window, softcap=softcap, tile=tile, splits=splits)
    assert_same(found, case.expected(window, softcap))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("dim", [64, 80, 96, 128, 256])
def test_head_widths_of_real_models(dim, dtype):
    case = Case(random_tree(20, dim), 70, (4, 1), dim, dtype)
    assert_same(case.run(), case.expected())
    assert_same(case.run(splits=2), case.expected())


def test_trees_of_511_nodes():
    case = Case(random_tree(511, 3, reach=40), 40, (1, 1))
    tile = Tile(64, 64, 4, 2)
    assert_same(case.run(window=50, tile=tile), case.expected(50))


@pytest.mark.parametrize(
    ("context", "window"),
    [(0, None), (0, 1), (1, 16), (31, 33), (32, None), (33, 1), (64, 16), (90, 33), (90, 90)],
)
def test_chains_need_no_depths_and_no_ancestors(context, window):
    case = Case(tree_of(list(range(-1, 39))), context)
    found = case.run(chain_mask(context), window=window, tile=Tile(16, 32, 4, 2))
    assert_same(found, case.expected(window))


def block_mask(rows, context):
    """The mask of a drafter's block: every row sees every row."""
    length = torch.full((), context, dtype=torch.int32, device=DEVICE)
    words = torch.full((rows, -(-rows // 32)), -1, dtype=torch.int32, device=DEVICE)
    return TreeMask(length, context, 0, torch.arange(rows, device=DEVICE), words, causal=False)


@pytest.mark.parametrize(
    ("rows", "context", "window", "heads"),
    [(2, 0, None, (1, 2)), (16, 33, None, (4, 1)), (16, 64, 20, (4, 1)), (40, 90, 41, (2, 1))],
)
def test_rows_of_a_block_see_later_rows(rows, context, window, heads):
    """Also rows of other programs, in more than one word."""
    case, every = Case(tree_of(list(range(-1, rows - 1))), context, heads), torch.ones(rows, rows)
    for splits in (1, 3):
        found = case.run(
            block_mask(rows, context), window=window, tile=Tile(16, 32, 4, 2), splits=splits
        )
        assert_same(found, case.expected(window, visible=every.bool()))
    causal = case.run(chain_mask(context), window=window)
    assert error(causal, case.expected(window, visible=every.bool())) > 1e-2


def test_a_tree_of_the_anchor_alone_equals_plain_decoding():
    case = Case(tree_of([-1]), 77, (4, 2))
    assert_same(case.run(chain_mask(77)), case.expected())
    assert_same(case.run(), case.expected())


def test_a_forward_of_the_last_nodes_gives_their_rows_of_the_whole_tree():
    tree = random_tree(40, 1)
    whole = Case(tree, 50)
    for first in (1, 40):
        mask = mask_of(tree, 50)
        part = TreeMask(mask.context, 50, first, mask.depths, mask.ancestors[first:].contiguous())
        query, rows = whole.query, whole.query.shape[1] - first
        whole.query = query[:, first:]
        found = whole.run(part, window=30)
        whole.query = query
        assert found.shape[0] == rows
        assert_same(found, whole.expected(30)[first:])


def test_the_length_is_read_on_the_device_and_not_from_longest():
    case = Case(random_tree(10, 2), 70)
    mask = mask_of(case.tree, 70)
    longer = TreeMask(mask.context, 500, 0, mask.depths, mask.ancestors)
    assert torch.equal(case.run(longer, splits=3), case.run(mask, splits=3))


def test_other_branches_and_keys_outside_the_window_do_not_change_a_row():
    tree = tree_of([-1, 0, 0, 1, 2])
    case = Case(tree, 40)
    before = case.run(window=8)
    case.keys[:, 40 + 2] += 1.0  # node 2: itself and its child see it
    case.values[:, :32] += 1.0  # position 33 is the first that the anchor sees
    after = case.run(window=8)
    changed = (before != after).flatten(1).any(1).tolist()
    assert changed == [False, False, True, False, True]
    case.values[:, 33] += 1.0
    assert bool((case.run(window=8)[0] != after[0]).any())


def test_a_wrong_bit_or_window_exceeds_the_bound():
    case = Case(random_tree(20, 5), 40, dtype=torch.float16)
    mask = mask_of(case.tree, 40)
    assert_same(case.run(mask, window=20), case.expected(20))
    assert error(case.run(mask, window=21), case.expected(20)) > 5 * BOUND[torch.float16]
    mask.ancestors[12, 0] ^= 1 << 1
    assert error(case.run(mask, window=20), case.expected(20)) > 5 * BOUND[torch.float16]


@pytest.mark.parametrize(
    ("nodes", "reach"), [(0, 1), (1, 1), (31, 1), (32, 4), (63, 1), (64, 600), (511, 600)]
)
def test_ancestor_words_equal_those_of_the_host(nodes, reach):
    tree = random_tree(nodes, nodes, reach)
    expected = tree_mask.ancestor_words(tree.ancestors())
    assert ancestor_words(tree.parents.to(DEVICE)).tolist() == expected.tolist()


def test_each_launch_is_counted_by_kernel():
    case, before = Case(tree_of([-1, 0]), 70), LAUNCHES.counts()
    case.run(splits=1)
    case.run(splits=2)
    after = LAUNCHES.counts()
    ran = {name: after[name] - before.get(name, 0) for name in after}
    assert (ran["ancestors"], ran["tree_attention"], ran["combine"]) == (2, 2, 1)


def test_unsupported_dtypes_widths_and_groups_are_refused():
    case = Case(tree_of([-1, 0]), 5)
    case.query, case.keys, case.values = (
        part.double() for part in (case.query, case.keys, case.values)
    )
    with pytest.raises(UnsupportedTarget, match=r"float64.*runtime\.dtype"):
        case.run()
    with pytest.raises(UnsupportedTarget, match="up to 256"):
        Case(tree_of([-1, 0]), 5, dim=288).run()
    uneven = Case(tree_of([-1, 0]), 5, (3, 1))
    uneven.keys, uneven.values = (part.repeat(2, 1, 1) for part in (uneven.keys, uneven.values))
    with pytest.raises(UnsupportedTarget, match=r"multiple of 2 query heads.*has 3"):
        uneven.run()
