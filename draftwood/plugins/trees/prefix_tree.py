"""Trees of scored paths that share prefixes."""

from collections.abc import Iterable

from draftwood.core.tree import TokenTree

ScoredPath = tuple[float, tuple[int, ...], int]
"""Log path score, a path that identifies the node, and its token."""


def prefix_tree(anchor: int, paths: Iterable[ScoredPath], nodes: int) -> TokenTree:
    """The `nodes` paths of highest score, then least depth, then lowest path, as a tree.

    Args:
        anchor: Token of node 0.
        paths: Distinct paths with all their prefixes; scores do not increase along a path.
        nodes: Most draft nodes.
    """
    order = sorted(paths, key=lambda node: (-node[0], len(node[1]), node[1]))[:nodes]
    index = {path: i for i, (_, path, _) in enumerate(order, 1)}
    index[()] = 0
    return TokenTree.from_lists(
        [anchor, *(token for *_, token in order)],
        [-1, *(index[path[:-1]] for _, path, _ in order)],
        [0, *(len(path) for _, path, _ in order)],
        [0.0, *(score for score, *_ in order)],
    )
