"""`sampled`: chains and trees whose nodes are drawn from the proposal's own distribution."""

import torch
from torch import Tensor

from draftwood.core.draws import Draws
from draftwood.core.interfaces import ShouldExpand, TreePolicy
from draftwood.core.proposals import Frontier, Proposal
from draftwood.core.randomness import Randomness
from draftwood.core.tree import TokenTree, TreeBuilder
from draftwood.core.values import Limits
from draftwood.plugins.trees.options import SampledOptions
from draftwood.plugins.trees.scoring import depth_limit


class Sampled(TreePolicy):
    """Draws level by level, and carries with every node exactly the distribution it was drawn from.

    Growth is predictable: whether a node is drawn depends on limits set before the round and on
    nodes drawn before it, never on its own score, and nothing that was drawn is dropped. That is
    what keeps `ratio`, `multi_round` and `traversal` exact under a budget.
    """

    def __init__(self, options: SampledOptions) -> None:
        self.options = options

    def grow(
        self,
        anchor: int,
        proposal: Proposal,
        limits: Limits,
        should_expand: ShouldExpand,
        rng: Randomness,
    ) -> TokenTree:
        depth = depth_limit(proposal, limits)
        widths = self.options.widths[:depth] or (1,) * depth
        growing = _Growing(anchor, self.options.draws, limits.nodes)
        if growing.full or not widths:
            return TokenTree.root(anchor)
        frontier, nodes = proposal.root(), [0]
        for level, width in enumerate(widths, 1):
            if level > 1 and proposal.pass_per_level and not should_expand(growing.build()):
                break
            rows, tokens, added = growing.draw(proposal.probs(frontier), nodes, level, width, rng)
            if not added or growing.full or level == len(widths):
                break
            frontier = _advance(proposal, frontier, rows, tokens)
            nodes = added
        return growing.build()


class _Growing(TreeBuilder):
    """A drawn tree under construction, with at most `limit` draft nodes."""

    def __init__(self, anchor: int, draws: Draws, limit: int) -> None:
        super().__init__(anchor, draws)
        self.limit = limit

    @property
    def full(self) -> bool:
        return self.nodes >= self.limit

    def draw(
        self, probs: Tensor, nodes: list[int], level: int, width: int, rng: Randomness
    ) -> tuple[list[int], list[int], list[int]]:
        """`width` children for each of `nodes`, whose distributions are the rows of
        `probs`, as long as the limit allows. Returns rows, tokens and indices of the new
        nodes."""
        rows: list[int] = []
        start = len(self.tokens)
        for row, parent in enumerate(nodes):
            remaining = probs[row]
            for _ in range(width):
                if self.full or not float(remaining.sum()) > 0:
                    break
                # Keyed by depth, not by position: the stream is this round's own.
                token = rng.categorical(remaining, level, len(self.tokens) - start)
                conditional = float(probs[row, token].double().log())
                self.add(parent, token, conditional, remaining)
                rows.append(row)
                if self.draws is Draws.WITHOUT_REPLACEMENT:
                    remaining = _without(remaining, token)
        added = list(range(start, len(self.tokens)))
        return rows, self.tokens[start:], added


def _without(probs: Tensor, token: int) -> Tensor:
    """The distribution of the next draw once `token` is taken; all zero if nothing is left."""
    rest = probs.clone()
    rest[token] = 0.0
    total = rest.sum()
    return rest / total if total > 0 else rest


def _advance(
    proposal: Proposal, frontier: Frontier, rows: list[int], tokens: list[int]
) -> Frontier:
    device = proposal.device
    return proposal.advance(
        frontier, torch.tensor(rows, device=device), torch.tensor(tokens, device=device)
    )
