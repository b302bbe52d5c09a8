"""Whether one more level of a tree is worth a drafter pass, where each level costs one."""

import math

import numpy as np

from draftwood.core.values import TokenTree
from draftwood.plugins.controllers.roofline.acceptance import Acceptance
from draftwood.plugins.controllers.roofline.prices import Prices


def level_pays(
    tree: TokenTree,
    acceptance: Acceptance,
    prices: Prices,
    context: int,
    pace: float | None = None,
) -> bool:
    """Whether the next level may add tokens faster than the round makes them without it.

    The nodes below the deepest level can add no more than that level's own mass, times what is
    known of acceptance one level deeper. So if that bound, over the seconds of a pass, is below
    the best A^(N) / T(N) of the tree so far, neither this level nor any number of deeper ones,
    which have a pass each and no more mass, makes a faster round. Their nodes' share of the
    target's forward is left out: it would only speak against them.

    pace: tokens per second to beat; None for the round's own.
    """
    curve = np.array(acceptance.surrogate(tree))
    depths = np.array(tree.depth_list)
    deepest = int(depths.max())
    mass = float(np.diff(curve, prepend=0.0)[depths == deepest].sum())
    bound = mass * min(1.0, math.exp(acceptance.factors(deepest + 1)[deepest]))
    passes = max(1, deepest)  # the first level comes with the proposal
    before = prices.grown(passes, context)
    if pace is None:
        pace = float((curve / (before + prices.forwards(len(tree), context))).max())
    return bound > pace * (prices.grown(passes + 1, context) - before)
