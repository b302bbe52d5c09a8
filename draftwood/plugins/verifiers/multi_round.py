"""`multi_round`: rejection among siblings, for trees that were sampled from the drafter."""

from draftwood.core.interfaces import NodeDistributions, Verifier
from draftwood.core.randomness import Randomness
from draftwood.core.tree import TokenTree
from draftwood.core.values import Verdict
from draftwood.plugins.verifiers.options import MultiRoundOptions
from draftwood.plugins.verifiers.residual import ratio, residual


class MultiRound(Verifier):
    """Judges a node's children one after the other, each against what the earlier ones left of p.

    SpecInfer's multi-step sampling (2305.09781); with children drawn without replacement, each
    against its own renormalised distribution, as in recursive rejection sampling. Exact for chains,
    for i.i.d. children (every draw is judged, duplicates too) and for children without replacement.
    """

    def __init__(self, options: MultiRoundOptions | None = None) -> None:
        self.options = options or MultiRoundOptions()

    def judge(self, distributions: NodeDistributions, tree: TokenTree, rng: Randomness) -> Verdict:
        """Walk the tree; where every child is rejected, draw from what is left of p.

        distributions: p at each node, (V,). tree: children in draw order, q (N, V) each node's own
        distribution. Raises NonFiniteLogits naming the node if its row is NaN or has no finite
        entry."""
        accepted, node = [0], 0
        while True:
            p, position = distributions.probs(node), distributions.position(node)
            children = tree.children[node]
            for draw, child in enumerate(children):
                assert tree.q is not None
                q = tree.q[child - 1]
                if rng.accept(ratio(p, q, tree.token_list[child]), position, draw):
                    break
                p = residual(p, q)
            else:
                bonus = rng.categorical(p, position, len(children))
                return Verdict(tuple(accepted), bonus)
            accepted.append(child)
            if distributions.ends(child):
                return Verdict(tuple(accepted), None)
            node = child
