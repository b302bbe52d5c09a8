"""`match`: draws from the target, and follows the tree while a child has the drawn token."""

from draftwood.core.interfaces import NodeDistributions, Verifier
from draftwood.core.randomness import Randomness
from draftwood.core.tree import TokenTree
from draftwood.core.values import Verdict
from draftwood.plugins.verifiers.options import MatchOptions


class Match(Verifier):
    """Exact for every tree and budget that does not depend on its own draws.

    Each token is drawn from p with the noise of its own position, so a seed gives the tokens of
    plain decoding, whatever the tree. For deterministic trees no rule accepts more: a node's
    acceptance is p(children). At temperature 0 it follows the argmax. Leviathan et al. 2023
    (arXiv 2211.17192) with one-hot proposals; SpecInfer's naive sampling (arXiv 2305.09781).
    """

    def __init__(self, options: MatchOptions | None = None) -> None:
        self.options = options or MatchOptions()

    def judge(self, distributions: NodeDistributions, tree: TokenTree, rng: Randomness) -> Verdict:
        """Walk `tree` from the root; the first drawn token that no child has is the bonus.

        Only the nodes of the accepted path are read.

        Raises:
            NonFiniteLogits: The row of a node that is read is NaN or has no finite entry.
        """
        accepted, node = [0], 0
        tokens, children = tree.token_list, tree.children
        while True:
            if distributions.greedy:
                token = distributions.argmax(node)
            else:
                token = rng.categorical(distributions.probs(node), distributions.position(node))
            matching = (child for child in children[node] if tokens[child] == token)
            child = next(matching, None)
            if child is None:
                return Verdict(tuple(accepted), token)
            accepted.append(child)
            if distributions.ends(child):
                return Verdict(tuple(accepted), None)
            node = child
