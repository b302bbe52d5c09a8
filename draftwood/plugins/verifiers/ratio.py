"""`ratio`: the classic rejection rule for a chain that was sampled from the drafter."""

from draftwood.core.interfaces import NodeDistributions, Verifier
from draftwood.core.randomness import Randomness
from draftwood.core.tree import TokenTree
from draftwood.core.values import Verdict
from draftwood.plugins.verifiers.options import RatioOptions
from draftwood.plugins.verifiers.residual import ratio, residual


class Ratio(Verifier):
    """Accepts a token x drawn from q with probability min(1, p(x) / q(x)).

    Leviathan et al. 2023 (2211.17192), Chen et al. 2023 (2302.01318). Exact for chains whose
    nodes carry the distribution they were drawn from.
    """

    def __init__(self, options: RatioOptions | None = None) -> None:
        self.options = options or RatioOptions()

    def judge(self, distributions: NodeDistributions, tree: TokenTree, rng: Randomness) -> Verdict:
        """Walk the chain; the first rejection draws from the residual max(p - q, 0).

        distributions: p at each node, (V,). tree: a chain, q (N, V) the distributions it was drawn
        from. Raises NonFiniteLogits naming the node if its row is NaN or has no finite entry."""
        accepted, node = [0], 0
        while tree.children[node]:
            (child,) = tree.children[node]
            assert tree.q is not None
            p, q, position = (
                distributions.probs(node),
                tree.q[child - 1],
                distributions.position(node),
            )
            if not rng.accept(ratio(p, q, tree.token_list[child]), position):
                return Verdict(tuple(accepted), rng.categorical(residual(p, q), position, 1))
            accepted.append(child)
            if distributions.ends(child):
                return Verdict(tuple(accepted), None)
            node = child
        return Verdict(
            tuple(accepted),
            rng.categorical(distributions.probs(node), distributions.position(node)),
        )
