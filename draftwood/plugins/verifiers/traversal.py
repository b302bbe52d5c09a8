"""`traversal`: judge a sampled tree from its leaves to its root."""

from torch import Tensor

from draftwood.core.interfaces import NodeDistributions, Verifier
from draftwood.core.randomness import Randomness
from draftwood.core.tree import TokenTree
from draftwood.core.values import Verdict
from draftwood.plugins.verifiers.options import TraversalOptions
from draftwood.plugins.verifiers.residual import ratio


class Traversal(Verifier):
    """Accepts whole paths, deepest first, so that a doubtful token may be carried by what follows.

    Traversal verification (2505.12398); on chains it is block verification (2403.10444). Accepts
    at least as many tokens as `multi_round` on the same trees, and is exact for them.
    """

    def __init__(self, options: TraversalOptions | None = None) -> None:
        self.options = options or TraversalOptions()

    def judge(self, distributions: NodeDistributions, tree: TokenTree, rng: Randomness) -> Verdict:
        """Visit the tree depth first, children in draw order; the first node accepted on the way
        back is the end of the path, and the bonus comes from what is left of its distribution.

        distributions: p at each node, (V,). tree: children in draw order, q (N, V) each node's own
        distribution. Raises NonFiniteLogits naming the node if its row is NaN or has no finite
        entry."""
        # A leaf's draw decides about its ancestors, so one position may be judged again next
        # round: the draws of different rounds must differ.
        rng = rng.stream(f"traversal/{distributions.round}")
        verdict = _visit(0, 1.0, distributions, tree, rng)
        assert verdict is not None, "the root is always accepted"
        return verdict


def _visit(
    node: int, potential: float, distributions: NodeDistributions, tree: TokenTree, rng: Randomness
) -> Verdict | None:
    """The verdict if `node` or something below it is accepted, else None.

    potential: in [0, 1], the probability with which the path so far may still be accepted.
    """
    position = distributions.position(node)
    if distributions.ends(node):
        accepted = rng.accept(potential, position, 2 * node)
        return Verdict(tuple(tree.path(node)), None) if accepted else None
    p = distributions.probs(node)
    for child in tree.children[node]:
        assert tree.q is not None
        q = tree.q[child - 1]
        below = min(1.0, potential * ratio(p, q, tree.token_list[child]))
        verdict = _visit(child, below, distributions, tree, rng)
        if verdict is not None:
            return verdict
        potential, p = rejected(potential, p, q)
    if node == 0 or rng.accept(potential, position, 2 * node):
        return Verdict(tuple(tree.path(node)), rng.categorical(p, position, 2 * node + 1))
    return None


def rejected(potential: float, p: Tensor, q: Tensor) -> tuple[float, Tensor]:
    """The node's potential and distribution after a child drawn from q was rejected.

    With R = max(a p - q, 0) and S its sum they are S / (S + 1 - a) and R / S. Written so, and not
    with 1 - q(x) in the denominator, which is another number and biased.
    """
    left = (potential * p - q).clamp_min(0.0)
    total = float(left.sum())
    if total > 0:
        return total / (total + (1.0 - potential)), left / total
    # Nothing is left. At potential 1 that means p = q, where a rejection has probability zero.
    return (potential, p) if potential == 1.0 else (0.0, p)
