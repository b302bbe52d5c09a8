"""Whether one more level of a tree is worth a drafter pass, where each level costs one."""

import math

import numpy as np

from draftwood.core.tree import TokenTree
from draftwood.plugins.controllers.roofline.acceptance import Acceptance
from draftwood.plugins.controllers.roofline.prices import Prices


def level_pays(
    tree: TokenTree,
    acceptance: Acceptance,
    prices: Prices,
    context: int,
    pace: float | None = None,
) -> bool:
    """Whether the next level is expected to add tokens faster than the round makes them without.

    A node's children are expected to keep the share of its chance that the deepest level kept of
    the level above it, corrected by what is known of acceptance one level deeper. Each is worth
    that, less what its place in the target's forward costs; together they are to pay for the pass.
    Deeper levels have a pass each and less chance, so if this one does not pay, none after it does.

    pace: tokens per second to beat; None for the best A^(N) / T(N) of the tree so far.
    """
    curve = np.array(acceptance.expected_tokens(tree))
    scores = np.diff(curve)
    depths = np.array(tree.depth_list[1:])
    deepest = int(depths.max(initial=0))
    if deepest == 0:
        return False
    passes = deepest  # the first level comes with the proposal
    forwards = np.array(prices.forwards(len(tree) + 1, context)[: len(tree) + 1])
    seconds = forwards[:-1] + prices.overhead(context, passes)
    best = int((curve / seconds).argmax())
    if pace is None:
        pace = float(curve[best] / seconds[best])
    level = scores[depths == deepest]
    above = scores[depths == deepest - 1].sum() if deepest > 1 else 1.0
    factors = acceptance.factors(deepest + 1)
    kept = math.exp(factors[deepest] - factors[deepest - 1]) * level.sum() / max(above, 1e-300)
    # The mean step from here on: the first step after one token alone is far above the others.
    place = float(forwards[-1] - forwards[best]) / (len(forwards) - 1 - best)
    worth = np.maximum(0.0, min(1.0, kept) * level - pace * place).sum()
    one_more = prices.overhead(context, passes + 1) - prices.overhead(context, passes)
    return bool(worth > pace * one_more)
