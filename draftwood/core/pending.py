"""Committed tokens that a drafter has not received yet, because it did not run."""

from collections.abc import Sequence

import torch
from attrs import define, field
from torch import Tensor

LIMIT = 512
"""Most tokens in a queue; a drafter that does not run receives them when so many wait."""


@define(eq=False)
class Pending:
    """A queue of committed tokens for a drafter.

    Attributes:
        tokens: In order.
        features: Of the same tokens, tensors (n, taps * H); empty without taps.
    """

    tokens: list[int] = field(factory=list)
    features: list[Tensor] = field(factory=list)

    @property
    def full(self) -> bool:
        """Whether the limit is reached."""
        return len(self.tokens) >= LIMIT

    def add(self, tokens: Sequence[int], features: Tensor | None) -> None:
        """Append tokens with their features, if there are any."""
        self.tokens.extend(tokens)
        if features is not None:
            self.features.append(features)

    def take(self) -> tuple[tuple[int, ...], Tensor | None]:
        """Empty the queue; return the arguments of `DraftSession.commit`."""
        tokens = tuple(self.tokens)
        features = torch.cat(self.features) if self.features else None
        self.tokens, self.features = [], []
        return tokens, features

    def copy(self) -> "Pending":
        """An independent copy."""
        return Pending(self.tokens.copy(), self.features.copy())
