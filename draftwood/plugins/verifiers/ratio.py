"""`ratio`: the rejection rule for a chain that was drawn from the drafter."""

from draftwood.core.interfaces import NodeDistributions, Verifier
from draftwood.core.randomness import Randomness
from draftwood.core.tree import TokenTree
from draftwood.core.values import Verdict
from draftwood.plugins.verifiers.options import RatioOptions
from draftwood.plugins.verifiers.residual import ratio, residual


class Ratio(Verifier):
    """Accepts a token x drawn from q with probability min(1, p(x) / q(x)).

    Exact for chains whose nodes carry the distributions that they were drawn from. Leviathan et al.
    2023 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318).
    """

    def __init__(self, options: RatioOptions | None = None) -> None:
        self.options = options or RatioOptions()

    def judge(self, distributions: NodeDistributions, tree: TokenTree, rng: Randomness) -> Verdict:
        """Walk the chain; the first rejection draws the bonus from the residual max(p - q, 0).

        Raises:
            NonFiniteLogits: The row of a node that is read is NaN or has no finite entry.
        """
        accepted, node = [0], 0
        while tree.children[node]:
            (child,) = tree.children[node]
            assert tree.q is not None
            p, q = distributions.probs(node), tree.q[child - 1]
            position = distributions.position(node)
            if not rng.accept(ratio(p, q, tree.token_list[child]), position):
                return Verdict(tuple(accepted), rng.categorical(residual(p, q), position, 1))
            accepted.append(child)
            if distributions.ends(child):
                return Verdict(tuple(accepted), None)
            node = child
        bonus = rng.categorical(distributions.probs(node), distributions.position(node))
        return Verdict(tuple(accepted), bonus)
