"""Factorized proposals: every position by itself."""

import torch
from attrs import evolve, field, frozen
from torch import Tensor

from draftwood.core.distributions import best, sampling_law
from draftwood.core.options import Sampling
from draftwood.core.proposals.base import Children, Frontier, Proposal, Table
from draftwood.core.proposals.vocabulary import Vocabulary


@frozen(eq=False)
class Factorized(Proposal):
    """Independent positions: the law at depth d does not depend on the path (DFlash, 2602.06036).

    logits: (D, V_draft), row d for the token at depth d + 1. One pass serves the whole tree.
    """

    logits: Tensor
    sampling: Sampling
    vocabulary: Vocabulary
    _cache: dict[str, Tensor] = field(factory=dict, init=False, repr=False)

    @property
    def max_depth(self) -> int:  # type: ignore[override]
        return self.logits.shape[0]

    @property
    def device(self) -> torch.device:
        return self.logits.device

    def tempered(self, temperature: float) -> "Factorized":
        return Factorized(
            self.logits, evolve(self.sampling, temperature=temperature), self.vocabulary
        )

    @property
    def _laws(self) -> Tensor:
        if "laws" not in self._cache:
            self._cache["laws"] = sampling_law(self.logits, self.sampling)
        return self._cache["laws"]

    def root(self) -> Frontier:
        return Frontier(0, 1)

    def expand(self, at: Frontier, k: int) -> Children:
        tokens, law = best(self._laws[at.depth], k, self.vocabulary.ids)
        shape = (at.size, tokens.shape[-1])
        return Children(tokens.expand(shape), law.double().log().expand(shape))

    def advance(self, at: Frontier, rows: Tensor, tokens: Tensor) -> Frontier:
        return Frontier(at.depth + 1, rows.shape[0])

    def law(self, at: Frontier) -> Tensor:
        row = self.vocabulary.scatter(self._laws[at.depth])
        return row.expand(at.size, -1)

    def table(self, k: int) -> Table:
        tokens, law = best(self._laws, k, self.vocabulary.ids)
        width, depth = tokens.shape[-1], self.max_depth
        return Table(
            tokens.tolist(),
            law.double().log().tolist(),
            [[d + 1 if d + 1 < depth else -1] * width for d in range(depth)],
        )
