"""The expected number of drafts that each rule accepts, from p and q. Bonus tokens do not count.

`expected_accepted` is for one tree and p at its nodes; `accepted_along_text` needs no tree, but a
text drawn from p, along whose prefixes each rule's acceptance has a closed form.

Formulas: `match` and `ratio` (arXiv 2211.17192), `multi_round` (2305.09781), `traversal`
(2505.12398), which on chains is block verification (2403.10444).
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from draftwood.core.errors import RequestError
from draftwood.core.tree import TokenTree
from draftwood.plugins.verifiers.residual import ratio, residual
from draftwood.plugins.verifiers.rules import RULE_DRAWS
from draftwood.plugins.verifiers.traversal import rejected

NodeProbs = Callable[[int], Tensor]
"""Node index -> p after it, (V,), with temperature, filters and processors applied."""


def expected_accepted(tree: TokenTree, probs: NodeProbs, rule: str) -> float:
    """Mean number of drafts of `tree` that `rule` accepts, over the rule's own randomness.

    Args:
        tree: The tree to verify.
        probs: Called only for nodes that the rule may reach and that have children.
        rule: match, ratio, multi_round or traversal.

    Raises:
        RequestError: The rule is unknown, or does not preserve the distribution for such trees.
    """
    if rule not in RULE_DRAWS:
        raise RequestError(f"no rule {rule!r}; choices: {', '.join(RULE_DRAWS)}")
    if tree.nodes and tree.draws not in RULE_DRAWS[rule]:
        raise RequestError(f"{rule} has no distribution for {tree.draws} trees")
    return EXPECTATIONS[rule](tree, probs)


def _match(tree: TokenTree, probs: NodeProbs) -> float:
    """The sum over nodes of p along their path; of siblings with one token the first counts."""
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


def _multi_round(tree: TokenTree, probs: NodeProbs) -> float:
    """Children in draw order, each against the residual of p after the rejected ones. On a chain
    this is the sum of products of min(1, p / q)."""
    assert tree.q is not None or tree.nodes == 0
    reach, total = [1.0] + [0.0] * tree.nodes, 0.0
    for node, children in enumerate(tree.children):
        if not children or reach[node] == 0.0:
            continue
        p, undecided = probs(node), reach[node]
        for child in children:
            assert tree.q is not None
            q = tree.q[child - 1]
            reach[child] = undecided * min(1.0, ratio(p, q, tree.token_list[child]))
            total += reach[child]
            undecided -= reach[child]
            if undecided <= 0.0:
                break
            p = residual(p, q)
    return total


def _traversal(tree: TokenTree, probs: NodeProbs) -> float:
    """Depth first: the first node that is accepted on the way back ends the path."""

    def visit(node: int, potential: float) -> tuple[float, float]:
        """Expected accepted drafts, and the probability that no node of the subtree is accepted."""
        if not tree.children[node] and node:
            return potential * tree.depth_list[node], 1.0 - potential
        p, total, undecided = probs(node), 0.0, 1.0
        for child in tree.children[node]:
            assert tree.q is not None
            q = tree.q[child - 1]
            child_potential = min(1.0, potential * ratio(p, q, tree.token_list[child]))
            accepted, none = visit(child, child_potential)
            total += undecided * accepted
            undecided *= none
            potential, p = rejected(potential, p, q)
        accept = potential if node else 1.0
        return total + undecided * accept * tree.depth_list[node], undecided * (1.0 - accept)

    return visit(0, 1.0)[0]


EXPECTATIONS: Mapping[str, Callable[[TokenTree, NodeProbs], float]] = {
    "match": _match,
    "ratio": _multi_round,
    "multi_round": _multi_round,
    "traversal": _traversal,
}
"""The names are those of `rules.RULE_DRAWS`."""


def accepted_along_text(p: Tensor, prior: Tensor, branches: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Accepted drafts of a round of a mixture drafter by rule, given a text drawn from p.

    Shapes: A anchors, K branches, D depths, V tokens.

    Args:
        p: (A, D, V) the target's distributions along y.
        prior: (A, K) branch weights.
        branches: (A, K, D, V) the branches' distributions, each position independent.
        y: (A, D) tokens.

    Returns:
        (A,) per rule; their means over y are the expectations:
        mixture_ratio: a chain drawn from the mixture under `ratio`.
        mixture_block: the same chain under `traversal`.
        mixture_bound: sum_i E_p[min(1, q(y_1..i) / p(y_1..i))], which no rule exceeds.
        branch_ratio: one branch, drawn from the prior and decoded greedily, under `ratio` with the
            conditional distribution of such draws (DBlast, arXiv 2608.05448).
        branch_match: the same chain under `match`.
        likeliest_match: the chain of the mixture's likeliest tokens under `match`.
        tree_match: the greedy branches merged into one prefix tree under `match`.
    """
    greedy = branches.argmax(-1)  # (A, K, D)
    one_hot = torch.zeros_like(branches).scatter_(-1, greedy[..., None], 1.0)
    q = _conditional(prior, branches, y)
    likeliest = torch.zeros_like(q).scatter_(-1, q.argmax(-1, keepdim=True), 1.0)
    ones = torch.full_like(prior, 1.0)
    return {
        "mixture_ratio": _ratio_along(p, q, y),
        "mixture_block": _block_along(p, q, y),
        "mixture_bound": _bound_along(p, q, y),
        "branch_ratio": _ratio_along(p, _conditional(prior, one_hot, y), y),
        "branch_match": (prior * _match_along(p[:, None], one_hot, y[:, None])).sum(-1),
        "likeliest_match": _match_along(p, likeliest, y),
        "tree_match": _match_along(p, (_conditional(ones, one_hot, y) > 0).to(p.dtype), y),
    }


def probs_of(probs: Tensor, y: Tensor) -> Tensor:
    """Probabilities (..., D) of the tokens y (..., D) under probs (..., D, V)."""
    return probs.gather(-1, y[..., None].expand(*probs.shape[:-1], 1))[..., 0]


def _conditional(prior: Tensor, branches: Tensor, y: Tensor) -> Tensor:
    """(A, D, V), the mixture's distribution after y_<i; zeros where it gives y_<i probability 0."""
    before = _before(probs_of(branches, y[:, None]).cumprod(-1))  # (A, K, D)
    weights = prior[..., None] * before
    total = weights.sum(1, keepdim=True)
    weights = torch.where(total > 0, weights / total, 0.0)
    return torch.einsum("akd,akdv->adv", weights, branches)


def _ratio_along(p: Tensor, q: Tensor, y: Tensor) -> Tensor:
    """sum_i E[prod_{m < i} min(1, q/p)(y_m) sum_x min(p_i(x), q_i(x))]."""
    passed = _before(_odds(p, q, y).clamp(max=1.0).cumprod(-1))
    return (passed * torch.minimum(p, q).sum(-1)).sum(-1)


def _block_along(p: Tensor, q: Tensor, y: Tensor) -> Tensor:
    """sum_i E_q[h_i] with h_i = min(1, h_{i-1} p_i / q_i). As a mean over p, given y_<i, it is
    (q/p)(y_<i) sum_x min(q_i(x), h_{i-1} p_i(x))."""
    odds = _odds(p, q, y)
    reached, kept = torch.ones_like(odds[:, 0]), torch.ones_like(odds[:, 0])  # (q/p)(y_<i), h
    accepted = torch.zeros_like(reached)
    for depth in range(y.shape[-1]):
        overlap = torch.minimum(q[:, depth], kept[:, None] * p[:, depth])
        accepted = accepted + reached * overlap.sum(-1)
        reached = reached * odds[:, depth]
        kept = torch.where(reached > 0, kept / odds[:, depth], 0.0).clamp(max=1.0)
    return accepted


def _bound_along(p: Tensor, q: Tensor, y: Tensor) -> Tensor:
    """sum_i E[sum_x min(p_i(x), (q/p)(y_<i) q_i(x))]."""
    reached = _before(_odds(p, q, y).cumprod(-1))
    return torch.minimum(p, reached[..., None] * q).sum((-1, -2))


def _match_along(p: Tensor, nodes: Tensor, y: Tensor) -> Tensor:
    """For the tree whose nodes after y_<i are the tokens with nodes[..., i, :] = 1: after a y_<i in
    the tree, the next token is in it with probability p(children)."""
    passed = _before(probs_of(nodes, y).cumprod(-1))
    return (passed * (p * nodes).sum(-1)).sum(-1)


def _odds(p: Tensor, q: Tensor, y: Tensor) -> Tensor:
    """(A, D), q/p of the text's tokens; 0 where rounding let the target draw a token with p = 0,
    behind which the text is no sample of p."""
    own = probs_of(p, y)
    return torch.where(own > 0, probs_of(q, y) / own, 0.0)


def _before(passed: Tensor) -> Tensor:
    """Products over m <= i -> over m < i."""
    return torch.cat((torch.ones_like(passed[..., :1]), passed[..., :-1]), -1)
