"""Committed tokens that a drafter has not taken in yet, because it did not run."""

from collections.abc import Sequence

import torch
from attrs import define, field
from torch import Tensor

LIMIT = 512
"""Tokens whose features may wait: a drafter that is off takes them in after so many."""


@define(eq=False)
class Pending:
    """tokens: in order. features: of the same tokens, (n, taps * H) a part; none without taps."""

    tokens: list[int] = field(factory=list)
    features: list[Tensor] = field(factory=list)

    @property
    def full(self) -> bool:
        return len(self.tokens) >= LIMIT

    def add(self, tokens: Sequence[int], features: Tensor | None) -> None:
        self.tokens.extend(tokens)
        if features is not None:
            self.features.append(features)

    def take(self) -> tuple[tuple[int, ...], Tensor | None]:
        """All of them, as `DraftSession.commit` wants them; none are left."""
        tokens = tuple(self.tokens)
        features = torch.cat(self.features) if self.features else None
        self.tokens, self.features = [], []
        return tokens, features

    def copy(self) -> "Pending":
        return Pending(self.tokens.copy(), self.features.copy())
