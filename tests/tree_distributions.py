"""The toy target's distributions at a tree's nodes, to judge it without an engine."""

import torch

from draftwood.core.interfaces import NodeDistributions
from draftwood.core.tree import TokenTree
from draftwood.testing import toy_target
from draftwood.testing.toy_pipelines import PROMPT


class TreeDistributions(NodeDistributions):
    """The toy target's distribution at each node of a tree."""

    greedy, round = False, 0

    def __init__(self, seed: int, tree: TokenTree) -> None:
        target = toy_target(seed)
        self.depths, self.size = tree.depth_list, len(tree)
        self.rows = [
            target.logits((*PROMPT, *(tree.token_list[i] for i in tree.path(node)[1:]))).exp()
            for node in range(len(tree))
        ]

    def probs(self, node: int) -> torch.Tensor:
        return self.rows[node]

    def argmax(self, node: int) -> int:
        return int(self.rows[node].argmax())

    def position(self, node: int) -> int:
        return 10 + self.depths[node]
