"""Factorized proposals: every position by itself."""

import torch
from attrs import evolve, field, frozen
from torch import Tensor

from draftwood.core.distributions import sampling_probs, stable_topk
from draftwood.core.options import Sampling
from draftwood.core.proposals.base import Children, Frontier, Proposal, Table
from draftwood.core.proposals.vocabulary import Vocabulary


@frozen(eq=False)
class FactorizedProposal(Proposal):
    """Independent positions: the distribution at depth d does not depend on the path (DFlash,
    2602.06036).

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

    def tempered(self, temperature: float) -> "FactorizedProposal":
        return FactorizedProposal(
            self.logits, evolve(self.sampling, temperature=temperature), self.vocabulary
        )

    @property
    def _distributions(self) -> Tensor:
        if "distributions" not in self._cache:
            self._cache["distributions"] = sampling_probs(self.logits, self.sampling)
        return self._cache["distributions"]

    def root(self) -> Frontier:
        return Frontier(0, 1)

    def expand(self, at: Frontier, k: int) -> Children:
        tokens, probs = stable_topk(self._distributions[at.depth], k, self.vocabulary.ids)
        shape = (at.size, tokens.shape[-1])
        return Children(tokens.expand(shape), probs.double().log().expand(shape))

    def advance(self, at: Frontier, rows: Tensor, tokens: Tensor) -> Frontier:
        return Frontier(at.depth + 1, rows.shape[0])

    def probs(self, at: Frontier) -> Tensor:
        row = self.vocabulary.scatter(self._distributions[at.depth])
        return row.expand(at.size, -1)

    def table(self, k: int) -> Table:
        tokens, probs = stable_topk(self._distributions, k, self.vocabulary.ids)
        width, depth = tokens.shape[-1], self.max_depth
        return Table(
            tokens.tolist(),
            probs.double().log().tolist(),
            [[d + 1 if d + 1 < depth else -1] * width for d in range(depth)],
        )
