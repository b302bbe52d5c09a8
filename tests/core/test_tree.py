"""Token trees: columns on the host and on a device, cutting, validation, and the builder."""

from collections.abc import Callable

import pytest
import torch

from draftwood.core.draws import Draws
from draftwood.core.errors import TreeError
from draftwood.core.tree import TokenTree, TreeBuilder

V = 9
COLUMNS = ([5, 1, 2, 1], [-1, 0, 0, 1], [0, 1, 1, 2], [0.0, -0.5, -1.0, -1.5])


def tree(**columns: list) -> TokenTree:
    """A valid tree of three draft nodes with some columns replaced."""
    names = ("tokens", "parents", "depths", "log_rho")
    return TokenTree.from_lists(**(dict(zip(names, COLUMNS, strict=True)) | columns))


def drawn(draws: Draws, rows: int = 3, width: int = V, **columns: list) -> TokenTree:
    made = tree(**columns)
    lists = (made.token_list, made.parent_list, made.depth_list, made.log_rho_list)
    return TokenTree.from_lists(*lists, draws, torch.full((rows, width), 1 / width))


MALFORMED: dict[str, tuple[Callable[[], TokenTree], str]] = {
    "a child before its parent": (lambda: tree(parents=[-1, 2, 0, 1]), "node 1 has parent 2"),
    "a node that is its own parent": (lambda: tree(parents=[-1, 1, 0, 1]), "node 1 has parent 1"),
    "a second root": (lambda: tree(parents=[-1, 0, -1, 1]), "node 2 has parent -1"),
    "no root": (lambda: tree(parents=[0, 0, 0, 1]), "node 0 must be a root"),
    "a root with a score": (lambda: tree(log_rho=[-1.0, -1.0, -1.0, -2.0]), "must be a root"),
    "a wrong depth": (lambda: tree(depths=[0, 1, 2, 2]), "node 2 has depth 2; its parent has 0"),
    "another anchor": (lambda: tree(tokens=[4, 1, 2, 1]), "holds token 4; the anchor is token 5"),
    "a negative token": (lambda: tree(tokens=[5, 1, -2, 1]), "node 2 holds token -2"),
    "a token outside the vocabulary": (lambda: tree(tokens=[5, 1, 2, 9]), "node 3 holds token 9"),
    "equal siblings": (
        lambda: tree(tokens=[5, 2, 2, 1]),
        "node 0 has two children with token 2",
    ),
    "equal siblings drawn without replacement": (
        lambda: drawn(Draws.WITHOUT_REPLACEMENT, tokens=[5, 2, 2, 1]),
        "node 0 has two children with token 2",
    ),
    "more nodes than the limit": (
        lambda: TokenTree.from_lists([5, 1, 2, 3, 4], [-1, 0, 0, 0, 0], [0, 1, 1, 1, 1], [0.0] * 5),
        "4 draft nodes; the limit is 3",
    ),
    "a node below the deepest level": (
        lambda: tree(parents=[-1, 0, 1, 2], depths=[0, 1, 2, 3]),
        "3 deep; the limit is 2",
    ),
    "columns of different lengths": (
        lambda: TokenTree(torch.tensor([5, 1]), *(torch.tensor([-1]),) * 3),
        r"must be \(N\+1,\)",
    ),
    "columns with a batch axis": (
        lambda: TokenTree(*(torch.zeros(1, 2, dtype=torch.int64),) * 4),
        r"must be \(N\+1,\)",
    ),
    "tokens that are not whole": (
        lambda: TokenTree(torch.tensor([5.0]), *(torch.tensor([-1]),) * 3),
        "must be int64",
    ),
    "q in a deterministic tree": (lambda: drawn(Draws.DETERMINISTIC), "carry the distributions"),
    "no q in a drawn tree": (
        lambda: TokenTree.from_lists(*COLUMNS, Draws.IID),
        "carry the distributions",
    ),
    "q with a row too few": (lambda: drawn(Draws.IID, rows=2), "q has 2 rows for 3 draft nodes"),
    "q of another width": (lambda: drawn(Draws.IID, width=4), r"q must be \(N, 9\)"),
    "a chain with a branch": (lambda: drawn(Draws.CHAIN), "must be one path"),
}
LIMITS = {"anchor": 5, "nodes": 3, "depth": 2, "vocab_size": V}


@pytest.mark.parametrize("name", MALFORMED)
def test_validate_rejects_a_malformed_tree(name: str) -> None:
    make, message = MALFORMED[name]
    with pytest.raises(TreeError, match=message):
        make().validate(**LIMITS)


def test_validate_accepts_well_formed_trees() -> None:
    path = {"parents": [-1, 0, 1, 2], "depths": [0, 1, 2, 3]}
    for made in (
        tree(),
        tree(tokens=[5, 2, 1, 2]),
        drawn(Draws.IID, tokens=[5, 2, 2, 1]),  # independent draws may be equal
        drawn(Draws.WITHOUT_REPLACEMENT),
        drawn(Draws.CHAIN, **path),
        TokenTree.root(5),
        TokenTree.chain([5, 1, 2, 3]),
    ):
        assert made.validate(**(LIMITS | {"depth": 3})) is made


def test_columns_on_a_device_are_validated_once_they_were_copied() -> None:
    """The meta device refuses every read, as a check that would wait for a GPU should be."""
    columns = [torch.tensor(column, device="meta") for column in COLUMNS]
    made = TokenTree(*columns)
    assert not made.on_host
    made.validate(**LIMITS)  # shapes only
    with pytest.raises(TreeError, match="the limit is 2"):
        made.validate(nodes=2)
    tokens, _, depths, log_rho = COLUMNS
    made.keep_lists(tokens=tokens, parents=[-1, 2, 0, 1], depths=depths, log_rho=log_rho)
    assert made.on_host
    with pytest.raises(TreeError, match="node 1 has parent 2"):
        made.validate(**LIMITS)


def test_a_cut_tree_is_a_prefix_and_a_drawn_one_cannot_be_cut() -> None:
    whole = tree()
    cut = whole.cut(2)
    assert (cut.token_list, cut.parent_list) == ([5, 1, 2], [-1, 0, 0])
    assert cut.tokens.tolist() == cut.token_list
    assert whole.cut(3) is whole
    with pytest.raises(TreeError, match="cannot be cut"):
        drawn(Draws.IID).cut(2)


def test_a_builder_gives_the_tree_that_lists_give() -> None:
    builder = TreeBuilder(5)
    first = builder.add(0, 1, -0.5)
    assert (first, builder.add(0, 2, -1.0), builder.add(first, 1, -1.0)) == (1, 2, 3)
    made, expected = builder.build().validate(**LIMITS), tree()
    for name in ("tokens", "parents", "depths", "log_rho"):
        assert torch.equal(getattr(made, name), getattr(expected, name))


def test_nodes_added_after_build_are_not_part_of_the_built_tree() -> None:
    builder = TreeBuilder(5)
    assert builder.build().nodes == 0
    builder.add(0, 1, -0.5)
    early = builder.build()
    builder.add(1, 2, -0.5)
    assert (len(early), len(early.token_list), builder.build().nodes) == (2, 2, 2)


def test_a_builder_of_drawn_trees_keeps_the_row_of_every_draw() -> None:
    builder = TreeBuilder(5, Draws.IID)
    rows = torch.eye(V)[:2]
    builder.add(0, 0, -0.1, rows[0])
    builder.add(1, 1, -0.2, rows[1])
    made = builder.build().validate(**LIMITS)
    assert made.draws is Draws.IID
    assert torch.equal(made.q, rows)


def test_a_builder_rejects_unknown_parents_and_rows_that_do_not_fit_its_draws() -> None:
    builder = TreeBuilder(5)
    for parent in (-1, 1):
        with pytest.raises(TreeError, match=f"no node {parent}; the tree has nodes 0 to 0"):
            builder.add(parent, 1, 0.0)
    with pytest.raises(TreeError, match="for no other"):
        builder.add(0, 1, 0.0, torch.ones(V))
    with pytest.raises(TreeError, match="each node of a drawn tree"):
        TreeBuilder(5, Draws.IID).add(0, 1, 0.0)
    assert builder.nodes == 0
