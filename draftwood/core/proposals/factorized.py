"""Factorized proposals: every position by itself."""

import torch
from attrs import evolve, field, frozen
from torch import Tensor

from draftwood.core.distributions import sampling_probs, stable_topk
from draftwood.core.options import Sampling
from draftwood.core.proposals.base import Children, Frontier, Proposal
from draftwood.core.proposals.table import Row, Table
from draftwood.core.proposals.vocabulary import Vocabulary


@frozen(eq=False)
class FactorizedProposal(Proposal):
    """Independent positions: a distribution depends on the depth alone (DFlash, arXiv 2602.06036).

    One forward pass serves the whole tree.

    Attributes:
        logits: (D, V_draft); row d is for the token at depth d + 1.
        vocabulary: Maps draft ids to target ids.
    """

    logits: Tensor
    sampling: Sampling
    vocabulary: Vocabulary
    _cache: list[Tensor] = field(factory=list, init=False, repr=False)

    @property
    def max_depth(self) -> int:  # type: ignore[override]
        return self.logits.shape[0]

    @property
    def device(self) -> torch.device:
        return self.logits.device

    def tempered(self, temperature: float) -> "FactorizedProposal":
        sampling = evolve(self.sampling, temperature=temperature)
        return FactorizedProposal(self.logits, sampling, self.vocabulary)

    @property
    def _probs(self) -> Tensor:
        """(D, V_draft), computed once."""
        if not self._cache:
            self._cache.append(sampling_probs(self.logits, self.sampling))
        return self._cache[0]

    def root(self) -> Frontier:
        return Frontier(0, 1)

    def expand(self, at: Frontier, k: int) -> Children:
        tokens, probs = stable_topk(self._probs[at.depth], k, self.vocabulary.ids)
        shape = (at.size, tokens.shape[-1])
        return Children(tokens.expand(shape), probs.double().log().expand(shape))

    def advance(self, at: Frontier, rows: Tensor, tokens: Tensor) -> Frontier:
        return Frontier(at.depth + 1, rows.shape[0])

    def probs(self, at: Frontier) -> Tensor:
        return self.vocabulary.scatter(self._probs[at.depth]).expand(at.size, -1)

    def table(self, k: int) -> Table:
        tokens, probs = stable_topk(self._probs, k, self.vocabulary.ids)
        next_rows = [*range(1, self.max_depth), -1]
        width = tokens.shape[-1]
        rows = [
            Row(row_tokens, log_q, [next_row] * width)
            for row_tokens, log_q, next_row in zip(
                tokens.tolist(), probs.double().log().tolist(), next_rows, strict=True
            )
        ]
        return Table(rows.__getitem__)
