"""Whether one more level of a tree pays, for drafters that run their model once per level."""

import math

import numpy as np

from draftwood.core.tree import TokenTree
from draftwood.plugins.controllers.roofline.acceptance import AcceptanceEstimate
from draftwood.plugins.controllers.roofline.cost_model import CostModel


def next_level_pays(
    tree: TokenTree,
    acceptance: AcceptanceEstimate,
    costs: CostModel,
    context: int,
    pace: float | None = None,
) -> bool:
    """Whether the next level is expected to add tokens faster than the round commits them now.

    A node's children are expected to keep the share of its score that the deepest level kept of
    the level above it, corrected by the acceptance one level deeper. Each child gains that, less
    the cost of its row in the target's forward; the sum must pay for the drafter's forward. Deeper
    levels cost the same and have lower scores, so if this level does not pay, no later one does.

    Args:
        tree: The tree so far.
        acceptance: Of the request.
        costs: Of the machine.
        context: Committed tokens.
        pace: Tokens per second to beat; None for the best A^(N) / T(N) of the tree so far.
    """
    curve = np.array(acceptance.expected_tokens(tree))
    scores = np.diff(curve)
    depths = np.array(tree.depth_list[1:])
    passes = deepest = int(depths.max(initial=0))  # the first level comes with the proposal
    if deepest == 0:
        return False
    forwards = np.array(costs.forwards(len(tree) + 1, context)[: len(tree) + 1])
    overhead = costs.overhead(context, passes)
    seconds = forwards[:-1] + overhead
    best = int((curve / seconds).argmax())
    if pace is None:
        pace = float(curve[best] / seconds[best])
    level = scores[depths == deepest]
    above = scores[depths == deepest - 1].sum() if deepest > 1 else 1.0
    factors = acceptance.log_factors(deepest + 1)
    kept = math.exp(factors[deepest] - factors[deepest - 1]) * level.sum() / max(above, 1e-300)
    # The mean step from here on: the first step after one token alone is far above the others.
    row = float(forwards[-1] - forwards[best]) / (len(forwards) - 1 - best)
    gain = np.maximum(0.0, min(1.0, kept) * level - pace * row).sum()
    return bool(gain > pace * (costs.overhead(context, passes + 1) - overhead))
