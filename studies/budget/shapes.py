"""Random trees and beams of the same proposal and size, to compare best-first trees with."""

import math
import random
from typing import Any

import torch

from draftwood.core.proposals import Proposal
from draftwood.core.tree import TokenTree

WIDTH = 32
"""Largest number of children of a node."""

Child = tuple[int, float, Any]
"""A token, its log-probability given the path, and its position for `Conditionals.children`."""


class Conditionals:
    """A proposal's conditional distributions, read one path at a time."""

    def __init__(self, proposal: Proposal) -> None:
        self.proposal = proposal
        self.table = proposal.table(WIDTH)
        self.root: Any = 0 if self.table else proposal.root()

    def children(self, position: Any) -> list[Child]:
        """The most likely tokens after a path, best first, zero probabilities left out."""
        if self.table:
            if position < 0:
                return []
            row = self.table.row(position)
            children = zip(row.tokens, row.log_q, row.next_rows, strict=True)
            return [child for child in children if child[1] > -math.inf]
        if isinstance(position, tuple):
            frontier, token = position
            position = self.proposal.advance(frontier, torch.tensor([0]), torch.tensor([token]))
        expanded = self.proposal.expand(position, WIDTH)
        pairs = zip(expanded.tokens[0].tolist(), expanded.log_q[0].tolist(), strict=True)
        return [(token, log_q, (position, token)) for token, log_q in pairs if log_q > -math.inf]


class _TreeBuilder:
    """A tree to which nodes are appended."""

    def __init__(self, anchor: int) -> None:
        self.tokens, self.parents, self.depths, self.log_rho = [anchor], [-1], [0], [0.0]

    def add(self, parent: int, token: int, log_q: float) -> int:
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(self.depths[parent] + 1)
        self.log_rho.append(self.log_rho[parent] + log_q)
        return len(self.tokens) - 1

    def tree(self) -> TokenTree:
        return TokenTree.from_lists(self.tokens, self.parents, self.depths, self.log_rho)


def random_tree(
    anchor: int, conditionals: Conditionals, nodes: int, depth: int, rng: random.Random
) -> TokenTree:
    """A random tree: at each step a node with further children, chosen uniformly, gets its next
    best child. Every prefix is a random tree of its size."""
    tree = _TreeBuilder(anchor)
    remaining: dict[int, list[Child]] = {}
    if depth > 0 and (first := conditionals.children(conditionals.root)):
        remaining[0] = first[::-1]
    while len(tree.tokens) <= nodes and remaining:
        parent = rng.choice(list(remaining))
        token, log_q, position = remaining[parent].pop()
        if not remaining[parent]:
            del remaining[parent]
        node = tree.add(parent, token, log_q)
        if tree.depths[node] < depth and (more := conditionals.children(position)):
            remaining[node] = more[::-1]
    return tree.tree()


def beam(anchor: int, conditionals: Conditionals, nodes: int, depth: int) -> TokenTree:
    """The same number of best paths on each level, so that `nodes` reach down to `depth`."""
    tree = _TreeBuilder(anchor)
    if depth < 1:
        return tree.tree()
    width = math.ceil(nodes / depth)
    level: list[tuple[int, Any]] = [(0, conditionals.root)]
    for _ in range(depth):
        candidates = [
            (tree.log_rho[parent] + log_q, parent, token, log_q, position)
            for parent, parent_position in level
            for token, log_q, position in conditionals.children(parent_position)[:width]
        ]
        candidates.sort(key=lambda candidate: -candidate[0])
        width_left = min(width, nodes + 1 - len(tree.tokens))
        level = [
            (tree.add(parent, token, log_q), position)
            for _, parent, token, log_q, position in candidates[:width_left]
        ]
        if not level:
            break
    return tree.tree()
