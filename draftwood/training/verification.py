"""What each way of drafting and verifying would accept, from p and q along text that p wrote.

For y drawn from p the acceptance of a rule at depth i has a closed form given y_<i, so only the
texts are random, not the drafts. Letters in shapes: A anchors, K branches, D depths, V tokens.
"""

import torch
from torch import Tensor


def accepted_drafts(p: Tensor, prior: Tensor, branches: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Accepted drafts of a round, without the bonus, by rule: (A,) each, in expectation over y.

    p: (A, D, V) the target's distributions along y. prior: (A, K) and branches: (A, K, D, V), the
    drafter's. y: (A, D) tokens. Rules:

    mixture_ratio: a chain drawn from the mixture, judged by `ratio` (arXiv 2302.01318).
    mixture_block: the same chain under `traversal`, which on chains is block verification
        (arXiv 2403.10444).
    mixture_bound: sum_i E_p[min(1, q(y_1..i) / p(y_1..i))], which no rule exceeds.
    branch_ratio: one branch, drawn from the prior and decoded greedily, judged by the conditional
        distribution of such draws (DBlast, arXiv 2608.05448). branch_match: the same, accepted
        where equal.
    likeliest_match: the likeliest token of the mixture's distribution after every accepted one.
    tree_match: the greedy branches merged into one prefix tree.
    """
    greedy = branches.argmax(-1)  # (A, K, D)
    hot = torch.zeros_like(branches).scatter_(-1, greedy[..., None], 1.0)
    q = conditional(prior, branches, y)
    likeliest = torch.zeros_like(q).scatter_(-1, q.argmax(-1, keepdim=True), 1.0)
    one_each = torch.full_like(prior, 1.0)
    return {
        "mixture_ratio": by_ratio(p, q, y),
        "mixture_block": by_block(p, q, y),
        "mixture_bound": bound(p, q, y),
        "branch_ratio": by_ratio(p, conditional(prior, hot, y), y),
        "branch_match": (prior * by_match(p[:, None], hot, y[:, None])).sum(-1),
        "likeliest_match": by_match(p, likeliest, y),
        "tree_match": by_match(p, (conditional(one_each, hot, y) > 0).to(p.dtype), y),
    }


def conditional(prior: Tensor, branches: Tensor, y: Tensor) -> Tensor:
    """(A, D, V), the mixture's distribution after y_<i; zeros where the mixture could not have said
    y_<i."""
    said = at(branches, y[:, None])  # (A, K, D)
    before = torch.cat((torch.ones_like(said[..., :1]), said[..., :-1].cumprod(-1)), -1)
    weights = prior[..., None] * before
    total = weights.sum(1, keepdim=True)
    weights = torch.where(total > 0, weights / total, 0.0)
    return torch.einsum("akd,akdv->adv", weights, branches)


def by_ratio(p: Tensor, q: Tensor, y: Tensor) -> Tensor:
    """sum_i E[prod_{m < i} min(1, q/p)(y_m) sum_x min(p_i(x), q_i(x))]."""
    passed = _shifted(_ratio(p, q, y).clamp(max=1.0).cumprod(-1))
    return (passed * torch.minimum(p, q).sum(-1)).sum(-1)


def by_block(p: Tensor, q: Tensor, y: Tensor) -> Tensor:
    """sum_i E_q[h_i] with h_i = min(1, h_{i-1} p_i / q_i), as a mean over p: given y_<i it is
    (q/p)(y_<i) sum_x min(q_i(x), h_{i-1} p_i(x))."""
    odds = _ratio(p, q, y)
    reached, kept = torch.ones_like(odds[:, 0]), torch.ones_like(odds[:, 0])  # (q/p)(y_<i), h
    found = torch.zeros_like(reached)
    for depth in range(y.shape[-1]):
        probs = torch.minimum(q[:, depth], kept[:, None] * p[:, depth])
        found = found + reached * probs.sum(-1)
        reached = reached * odds[:, depth]
        kept = torch.where(reached > 0, kept / odds[:, depth], 0.0).clamp(max=1.0)
    return found


def bound(p: Tensor, q: Tensor, y: Tensor) -> Tensor:
    """sum_i E[sum_x min(p_i(x), (q/p)(y_<i) q_i(x))]."""
    reached = _shifted(_ratio(p, q, y).cumprod(-1))
    return torch.minimum(p, reached[..., None] * q).sum((-1, -2))


def by_match(p: Tensor, nodes: Tensor, y: Tensor) -> Tensor:
    """A tree whose nodes after y_<i are the tokens with nodes[..., i, :] = 1: as long as y is in
    it, the next token is with the chance p(children)."""
    passed = _shifted(at(nodes, y).cumprod(-1))
    return (passed * (p * nodes).sum(-1)).sum(-1)


def at(distributions: Tensor, y: Tensor) -> Tensor:
    """distributions (..., D, V) of the tokens y (..., D)."""
    return distributions.gather(-1, y[..., None].expand(*distributions.shape[:-1], 1))[..., 0]


def _ratio(p: Tensor, q: Tensor, y: Tensor) -> Tensor:
    """(A, D), q/p of the text's tokens. Where rounding made the target write what its float32
    distribution excludes, the text is no sample beyond that token: 0 ends it."""
    own = at(p, y)
    return torch.where(own > 0, at(q, y) / own, 0.0)


def _shifted(passed: Tensor) -> Tensor:
    """Products over m <= i -> over m < i."""
    return torch.cat((torch.ones_like(passed[..., :1]), passed[..., :-1]), -1)
