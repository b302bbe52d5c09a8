"""Random trees, wide near the root, as best_first grows them."""

import math
import random

from draftwood.core.tree import TokenTree

DEEPEST = 15


def tree_of(nodes: int, vocab: int) -> TokenTree:
    """`nodes` draft nodes; the first ones are a chain a third of them long, DEEPEST at most."""
    rng = random.Random(nodes)
    chain = min(DEEPEST, max(1, nodes // 3))
    parents, depths = [-1], [0]
    for node in range(1, nodes + 1):
        parent = node - 1 if node <= chain else rng.randrange(node)
        while depths[parent] >= DEEPEST:
            parent = rng.randrange(node)
        parents.append(parent)
        depths.append(depths[parent] + 1)
    tokens = rng.sample(range(vocab), nodes + 1)  # no two children of one node with one token
    return TokenTree.from_lists(tokens, parents, depths, [-0.5 * depth for depth in depths])


def straight(tree: TokenTree) -> int:
    """Length of the chain at the start of the tree."""
    return next(
        (node - 1 for node, parent in enumerate(tree.parent_list) if node and parent != node - 1),
        len(tree) - 1,
    )


def rounded(rows: int, to: int = 256) -> int:
    """Capacity of a buffer for `rows`."""
    return math.ceil(rows / to) * to
