"""`sampled`: chains and trees whose nodes are drawn from the proposal's own distribution."""

import torch
from torch import Tensor

from draftwood.core.draws import Draws
from draftwood.core.interfaces import ShouldExpand, TreePolicy
from draftwood.core.proposals import Proposal
from draftwood.core.randomness import Randomness
from draftwood.core.tree import TokenTree, TreeBuilder
from draftwood.core.values import Limits
from draftwood.plugins.trees.options import SampledOptions
from draftwood.plugins.trees.scoring import depth_limit


class Sampled(TreePolicy):
    """Draws level by level, and keeps with every node the distribution that it was drawn from.

    Whether a node is drawn depends on limits set before the round and on nodes drawn before it,
    never on its own score, and nothing that was drawn is dropped. That keeps `ratio`,
    `multi_round` and `traversal` exact under a budget.
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
        if limits.nodes < 1 or not widths:
            return TokenTree.root(anchor)
        builder = TreeBuilder(anchor, self.options.draws)
        frontier, parents = proposal.root(), [0]
        for level, width in enumerate(widths, 1):
            probs, first = proposal.probs(frontier), len(builder.tokens)
            rows: list[int] = []
            for row, parent in enumerate(parents):
                remaining = probs[row]
                for _ in range(width):
                    if builder.nodes == limits.nodes or not float(remaining.sum()) > 0:
                        break
                    # Keyed by depth, not by position: the stream is this round's own.
                    token = rng.categorical(remaining, level, len(rows))
                    log_q = float(probs[row, token].double().log())
                    builder.add(parent, token, log_q, remaining)
                    rows.append(row)
                    if builder.draws is Draws.WITHOUT_REPLACEMENT:
                        remaining = _without(remaining, token)
            if not rows or builder.nodes == limits.nodes or level == len(widths):
                break
            device, tokens = proposal.device, builder.tokens[first:]
            frontier = proposal.advance(
                frontier, torch.tensor(rows, device=device), torch.tensor(tokens, device=device)
            )
            if proposal.pass_per_level and not should_expand(builder.build()):
                break
            parents = list(range(first, len(builder.tokens)))
        return builder.build()


def _without(probs: Tensor, token: int) -> Tensor:
    """The distribution of the next draw once `token` is taken; all zero if nothing is left."""
    rest = probs.clone()
    rest[token] = 0.0
    total = rest.sum()
    return rest / total if total > 0 else rest
