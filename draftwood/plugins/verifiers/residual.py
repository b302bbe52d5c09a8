"""The acceptance ratio of a draft token, and the distribution after its rejection."""

from torch import Tensor


def residual(p: Tensor, q: Tensor) -> Tensor:
    """norm(max(p - q, 0)), (V,): the distribution after a token drawn from q was rejected.

    It is p where the sum is 0: then p = q up to rounding, and a rejection has probability 0.
    """
    left = (p - q).clamp_min(0.0)
    total = left.sum()
    return left / total if total > 0 else p


def ratio(p: Tensor, q: Tensor, token: int) -> float:
    """p(token) / q(token); the token, drawn from q, is accepted with this probability, at most 1.

    0 where p is 0. q(token) is positive, since the token was drawn from q.
    """
    target_prob = float(p[token])
    return target_prob / float(q[token]) if target_prob > 0 else 0.0
