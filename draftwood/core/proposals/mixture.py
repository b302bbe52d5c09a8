"""Mixture proposals: a few factorized branches, weighed anew along every path."""

import torch
from attrs import evolve, field, frozen
from torch import Tensor

from draftwood.core.laws import best, sampling_law
from draftwood.core.options import Sampling
from draftwood.core.proposals.base import Children, Frontier, Proposal
from draftwood.core.proposals.vocabulary import Vocabulary


@frozen(eq=False)
class Mixture(Proposal):
    """q(x_1..d) = sum_z q(z) prod_i q_i(x_i | z): K branches, one pass (DBlast, 2608.05448).

    prior: (K,) logits of the branches, -inf for one that is never taken. logits: (K, D, V_draft),
    [z, d] for the token at depth d + 1 in branch z. Temperature and filters apply to each branch
    before they are mixed; prior_temperature is the prior's own (Z_T; 0 keeps its best branch only).

    After a path the branches weigh w_z = q(z) prod_i q_i(x_i | z), the path's score is their sum,
    and the next law is sum_z w_z q_{d+1}(x | z) / sum_z w_z. Children come from that whole law:
    the best token of a mixture may be the best of no branch, so joining branches' best tokens
    would not be exact.
    """

    prior: Tensor
    logits: Tensor
    sampling: Sampling
    vocabulary: Vocabulary
    prior_temperature: float = 1.0
    _cache: dict[str, Tensor] = field(factory=dict, init=False, repr=False)

    @property
    def max_depth(self) -> int:  # type: ignore[override]
        return self.logits.shape[1]

    @property
    def device(self) -> torch.device:
        return self.logits.device

    def tempered(self, temperature: float) -> "Mixture":
        """Branches at another temperature; the prior keeps its own."""
        sampling = evolve(self.sampling, temperature=temperature)
        return Mixture(self.prior, self.logits, sampling, self.vocabulary, self.prior_temperature)

    @property
    def _laws(self) -> Tensor:
        """(K, D, V), over the target's vocabulary."""
        if "laws" not in self._cache:
            law = sampling_law(self.logits, self.sampling)
            self._cache["laws"] = self.vocabulary.scatter(law)
        return self._cache["laws"]

    def root(self) -> Frontier:
        """state: (F, K) float64, the w_z of each node's path over their sum. Sums stay out of it,
        since products over many tokens would underflow."""
        prior = sampling_law(self.prior.double(), Sampling(self.prior_temperature))
        return Frontier(0, 1, prior[None])

    def expand(self, at: Frontier, k: int) -> Children:
        tokens, law = best(self.law(at), k)
        return Children(tokens, law.double().log())

    def advance(self, at: Frontier, rows: Tensor, tokens: Tensor) -> Frontier:
        likelihood = self._laws[:, at.depth][:, tokens.to(self.device)].double()
        weights = at.state[rows.to(self.device)] * likelihood.T
        return Frontier(at.depth + 1, rows.shape[0], weights / weights.sum(-1, keepdim=True))

    def law(self, at: Frontier) -> Tensor:
        laws = self._laws[:, at.depth]
        return at.state.to(laws.dtype) @ laws
