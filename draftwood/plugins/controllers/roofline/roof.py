"""A roofline model of the target's forward: the larger of a compute bound and a memory bound.

    T(s, c) = max(a_c F(s, c) / peak + b_c, a_m B(s, c) / bandwidth + b_m)

F (operations) and B (bytes) are polynomials in the tokens s of the forward and the committed
context c, so each bound is one polynomial in seconds (Williams et al. 2009).
"""

from typing import Any, ClassVar, Protocol

import numpy as np
from attrs import frozen

Polynomial = tuple[float, float, float, float, float]
"""Coefficients of 1, s, s^2, c and s c."""


class ForwardModel(Protocol):
    """Seconds of a forward before any correction. Hashable."""

    def __hash__(self) -> int: ...

    @property
    def correctable(self) -> bool:
        """Whether the times of rounds correct it."""
        ...

    def seconds(self, tokens: Any, context: int) -> Any:
        """Seconds of forwards over `tokens`, a number or an array; the result has its shape."""
        ...


@frozen
class Roof:
    """Seconds of a forward as the larger of two polynomials.

    Attributes:
        compute: Time bound by operations, in seconds.
        memory: Time bound by memory traffic, in seconds.
    """

    compute: Polynomial
    memory: Polynomial
    correctable: ClassVar[bool] = True

    def seconds(self, tokens: Any, context: int) -> Any:
        """Seconds of forwards over `tokens`, a number or an array; the result has its shape."""
        return np.maximum(
            evaluate(self.compute, tokens, context), evaluate(self.memory, tokens, context)
        )


def evaluate(p: Polynomial, tokens: Any, context: int) -> Any:
    """The value of one polynomial, in seconds."""
    return p[0] + p[3] * context + tokens * (p[1] + p[4] * context + p[2] * tokens)
