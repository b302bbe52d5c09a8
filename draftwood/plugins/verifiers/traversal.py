"""`traversal`: judges a drawn tree from its leaves to its root."""

from torch import Tensor

from draftwood.core.interfaces import NodeDistributions, Verifier
from draftwood.core.randomness import Randomness
from draftwood.core.tree import TokenTree
from draftwood.core.values import Verdict
from draftwood.plugins.verifiers.options import TraversalOptions
from draftwood.plugins.verifiers.residual import ratio


class Traversal(Verifier):
    """Accepts whole paths, deepest first: likely tokens below an unlikely one can save it.

    Exact for drawn trees, and accepts at least as many tokens as `multi_round` on them. Traversal
    verification (arXiv 2505.12398); on chains it is block verification (arXiv 2403.10444).
    """

    def __init__(self, options: TraversalOptions | None = None) -> None:
        self.options = options or TraversalOptions()

    def judge(self, distributions: NodeDistributions, tree: TokenTree, rng: Randomness) -> Verdict:
        """Visit the tree depth first, children in draw order.

        The first node that is accepted on the way back ends the path. The bonus is drawn from the
        residual of its distribution.

        Raises:
            NonFiniteLogits: The row of a node that is read is NaN or has no finite entry.
        """
        # A leaf's draw decides about its ancestors, so the next round may judge the same position:
        # the draws of different rounds must differ.
        rng = rng.stream(f"traversal/{distributions.round}")
        verdict = _visit(0, 1.0, distributions, tree, rng)
        assert verdict is not None, "the root is always accepted"
        return verdict


def _visit(
    node: int, potential: float, distributions: NodeDistributions, tree: TokenTree, rng: Randomness
) -> Verdict | None:
    """The verdict if `node` or a node below it is accepted, else None.

    Args:
        node: The node to visit.
        potential: Probability in [0, 1] with which the path to it can still be accepted.
        distributions: p at each node.
        tree: The verified tree.
        rng: Draws of this round.
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

    With R = max(a p - q, 0) and S its sum they are S / (S + 1 - a) and R / S. A denominator with
    1 - q(x) would be biased.
    """
    left = (potential * p - q).clamp_min(0.0)
    total = float(left.sum())
    if total > 0:
        return total / (total + (1.0 - potential)), left / total
    # An empty residual at potential 1 means p = q, where a rejection has probability 0.
    return (potential, p) if potential == 1.0 else (0.0, p)
