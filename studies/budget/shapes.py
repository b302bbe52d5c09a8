"""Trees to compare the best one with, of the same proposal and size: random ones and beams."""

import math
import random
from typing import Any

import torch

from draftwood.core.proposals import Proposal
from draftwood.core.tree import TokenTree

WIDTH = 32
"""Most children of a node."""

Child = tuple[int, float, Any]
"""A token, its log-probability given the path, and what `Conditionals.children` wants for it."""


class Conditionals:
    """A proposal's conditional distributions, one path at a time."""

    def __init__(self, proposal: Proposal) -> None:
        self.proposal = proposal
        self.table = proposal.table(WIDTH)
        self.root: Any = 0 if self.table else proposal.root()

    def children(self, at: Any) -> list[Child]:
        """The likeliest tokens after a path, best first; those without probability left out."""
        if self.table:
            if at < 0:
                return []
            rows = (self.table.tokens[at], self.table.log_q[at], self.table.next_row[at])
            return [child for child in zip(*rows, strict=True) if child[1] > -math.inf]
        if isinstance(at, tuple):
            frontier, token = at
            at = self.proposal.advance(frontier, torch.tensor([0]), torch.tensor([token]))
        found = self.proposal.expand(at, WIDTH)
        pairs = zip(found.tokens[0].tolist(), found.log_q[0].tolist(), strict=True)
        return [(token, log_q, (at, token)) for token, log_q in pairs if log_q > -math.inf]


class _Sapling:
    """A tree that grows node by node."""

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
    anchor: int, distributions: Conditionals, nodes: int, depth: int, rng: random.Random
) -> TokenTree:
    """Node by node: any node of the tree so far, all alike, gets its best child that is not there
    yet. Every prefix is a random tree of its size."""
    tree = _Sapling(anchor)
    waiting: dict[int, list[Child]] = {}
    if depth > 0 and (first := distributions.children(distributions.root)):
        waiting[0] = first[::-1]
    while len(tree.tokens) <= nodes and waiting:
        parent = rng.choice(list(waiting))
        token, log_q, below = waiting[parent].pop()
        if not waiting[parent]:
            del waiting[parent]
        node = tree.add(parent, token, log_q)
        if tree.depths[node] < depth and (more := distributions.children(below)):
            waiting[node] = more[::-1]
    return tree.tree()


def beam(anchor: int, distributions: Conditionals, nodes: int, depth: int) -> TokenTree:
    """Level by level the same number of best paths, as many as fill `nodes` down to `depth`."""
    tree = _Sapling(anchor)
    if depth < 1:
        return tree.tree()
    width = math.ceil(nodes / depth)
    level: list[tuple[int, Any]] = [(0, distributions.root)]
    for _ in range(depth):
        found = [
            (tree.log_rho[parent] + log_q, parent, token, log_q, below)
            for parent, at in level
            for token, log_q, below in distributions.children(at)[:width]
        ]
        found.sort(key=lambda child: -child[0])
        level = [
            (tree.add(parent, token, log_q), below)
            for _, parent, token, log_q, below in found[: min(width, nodes + 1 - len(tree.tokens))]
        ]
        if not level:
            break
    return tree.tree()
