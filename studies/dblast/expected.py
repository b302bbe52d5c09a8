"""How many drafts of a grown tree a rule accepts, computed exactly from p and q.

Sampling what a verifier does is noisy; its expectation is a sum over the tree. What stays random is
the tree itself, where it was drawn. Formulas: `match` and `ratio` in 2211.17192, `multi_round` in
2305.09781, `traversal` in 2505.12398. The bonus token is never counted.
"""

from collections.abc import Callable, Mapping

from torch import Tensor

from draftwood.core.draws import Draws
from draftwood.core.errors import RequestError
from draftwood.core.tree import TokenTree
from draftwood.plugins.verifiers.residual import ratio, residual
from draftwood.plugins.verifiers.traversal import rejected

Distributions = Callable[[int], Tensor]
"""A node's index -> p after it, (V,), temperature, filters and processors applied."""


def expected_accepted(tree: TokenTree, probs: Distributions, rule: str) -> float:
    """Mean drafts accepted of `tree` under `rule`, over the rule's own randomness.

    distribution: asked only at nodes that the rule may reach. rule: match, ratio, multi_round or
    traversal. Raises RequestError for another rule, or one that has no distribution for the tree's
    draws."""
    if rule not in RULES:
        raise RequestError(f"no rule {rule!r}; choices: {', '.join(RULES)}")
    draws, count = RULES[rule]
    if tree.nodes and tree.draws not in draws:
        raise RequestError(f"{rule} has no distribution for {tree.draws} trees")
    return count(tree, probs)


def _match(tree: TokenTree, probs: Distributions) -> float:
    """The sum over nodes of p along their path: the chance that the target says it. Of two
    children with one token (independent draws) the first is followed."""
    reach, total = [1.0] + [0.0] * tree.nodes, 0.0
    for node, children in enumerate(tree.children):
        if not children or reach[node] == 0.0:
            continue
        p, seen = probs(node), set()
        for child in children:
            token = tree.token_list[child]
            if token not in seen:
                seen.add(token)
                reach[child] = reach[node] * float(p[token])
                total += reach[child]
    return total


def _multi_round(tree: TokenTree, probs: Distributions) -> float:
    """Children are asked in draw order, each against what the ones before it left of p. On a chain
    this is the sum of products of min(1, p / q)."""
    assert tree.q is not None or tree.nodes == 0
    reach, total = [1.0] + [0.0] * tree.nodes, 0.0
    for node, children in enumerate(tree.children):
        if not children or reach[node] == 0.0:
            continue
        p, asked = probs(node), reach[node]
        for child in children:
            assert tree.q is not None
            q = tree.q[child - 1]
            accept = min(1.0, ratio(p, q, tree.token_list[child]))
            reach[child] = asked * accept
            total += reach[child]
            asked -= reach[child]
            if asked <= 0.0:
                break
            p = residual(p, q)
    return total


def _traversal(tree: TokenTree, probs: Distributions) -> float:
    """Depth first: the first node that is accepted on the way back ends the path."""

    def visit(node: int, potential: float) -> tuple[float, float]:
        """Drafts accepted times their chance, and the chance that nothing here is accepted."""
        if not tree.children[node] and node:
            return potential * tree.depth_list[node], 1.0 - potential
        p, total, going = probs(node), 0.0, 1.0
        for child in tree.children[node]:
            assert tree.q is not None
            q = tree.q[child - 1]
            below = min(1.0, potential * ratio(p, q, tree.token_list[child]))
            gained, missed = visit(child, below)
            total += going * gained
            going *= missed
            potential, p = rejected(potential, p, q)
        accept = potential if node else 1.0
        return total + going * accept * tree.depth_list[node], going * (1.0 - accept)

    return visit(0, 1.0)[0]


_CHAIN = frozenset({Draws.CHAIN})
_DRAWN = frozenset(Draws) - {Draws.DETERMINISTIC}

RULES: Mapping[str, tuple[frozenset[Draws], Callable[[TokenTree, Distributions], float]]] = {
    "match": (frozenset(Draws), _match),
    "ratio": (_CHAIN, _multi_round),
    "multi_round": (_DRAWN, _multi_round),
    "traversal": (_DRAWN, _traversal),
}
"""Each rule's trees, and its expectation."""
