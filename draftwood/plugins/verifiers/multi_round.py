"""`multi_round`: rejection sampling among siblings, for trees drawn from the drafter."""

from draftwood.core.interfaces import NodeDistributions, Verifier
from draftwood.core.randomness import Randomness
from draftwood.core.tree import TokenTree
from draftwood.core.values import Verdict
from draftwood.plugins.verifiers.options import MultiRoundOptions
from draftwood.plugins.verifiers.residual import ratio, residual


class MultiRound(Verifier):
    """Judges a node's children one after the other, each against the residual of p after the
    rejected ones.

    SpecInfer's multi-step sampling (arXiv 2305.09781). Children drawn without replacement are
    judged with their own renormalised distributions, as in recursive rejection sampling. Exact for
    chains, for i.i.d. children (duplicates are judged, too) and for children drawn without
    replacement.
    """

    def __init__(self, options: MultiRoundOptions | None = None) -> None:
        self.options = options or MultiRoundOptions()

    def judge(self, distributions: NodeDistributions, tree: TokenTree, rng: Randomness) -> Verdict:
        """Walk the tree; where every child is rejected, draw the bonus from the residual of p.

        Raises:
            NonFiniteLogits: The row of a node that is read is NaN or has no finite entry.
        """
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
