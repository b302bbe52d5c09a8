"""What two rejection rules share: the distribution that is left after a draft token was
rejected."""

from torch import Tensor


def residual(p: Tensor, q: Tensor) -> Tensor:
    """norm(max(p - q, 0)), (V,): the distribution after a token drawn from q was rejected.

    A sum of zero means that p and q are equal, up to rounding; then what was rejected had
    probability zero of being so, and the distribution is still p.
    """
    left = (p - q).clamp_min(0.0)
    total = left.sum()
    return left / total if total > 0 else p


def ratio(p: Tensor, q: Tensor, token: int) -> float:
    """p(token) / q(token), the probability of accepting a token drawn from q (capped by use).

    0 where p is 0. q(token) is positive, since the token was drawn from q.
    """
    wanted = float(p[token])
    return wanted / float(q[token]) if wanted > 0 else 0.0
