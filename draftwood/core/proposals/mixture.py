"""Mixture proposals: factorized branches whose weights are updated along every path."""

from functools import cached_property

import torch
from attrs import evolve, field, frozen
from torch import Tensor

from draftwood.core.distributions import sampling_probs, stable_topk
from draftwood.core.options import Sampling
from draftwood.core.proposals.base import Children, Frontier, Proposal
from draftwood.core.proposals.factorized import FactorizedProposal
from draftwood.core.proposals.table import Table
from draftwood.core.proposals.vocabulary import Vocabulary

MARGIN = 1e-6
"""Added to a bound, in nats: more than the rounding error of float32 probabilities."""


@frozen(eq=False)
class MixtureProposal(Proposal):
    """q(x_1..d) = sum_z q(z) prod_i q_i(x_i | z): K branches, one pass (DBlast, arXiv 2608.05448).

    After a path the weight of branch z is w_z = q(z) prod_i q_i(x_i | z), the path's score is the
    sum of the weights, and the next distribution is sum_z w_z q_{d+1}(x | z) / sum_z w_z.

    The most likely token of a mixture may be the most likely of no branch, so the union of the
    branches' top tokens may miss it. But a token outside every branch's top n has a probability of
    at most sum_z w_z times branch z's n-th largest. Tokens above that bound are correct; where one
    is not above it, n is doubled.

    Attributes:
        prior: (K,) logits of the branches, -inf for one that is never taken.
        logits: (K, D, V_draft); [z, d] is for the token at depth d + 1 in branch z.
        sampling: Temperature and filters, applied to each branch before they are mixed.
        vocabulary: Maps draft ids to target ids.
        prior_temperature: Z_T, the temperature of the prior; 0 keeps its best branch only.
    """

    prior: Tensor
    logits: Tensor
    sampling: Sampling
    vocabulary: Vocabulary
    prior_temperature: float = 1.0
    _topk: list[tuple[Tensor, Tensor]] = field(factory=list, init=False, repr=False)

    @property
    def max_depth(self) -> int:  # type: ignore[override]
        return self.logits.shape[1]

    @property
    def device(self) -> torch.device:
        return self.logits.device

    @cached_property
    def _draft_probs(self) -> Tensor:
        """(K, D, V_draft)."""
        return sampling_probs(self.logits, self.sampling)

    @cached_property
    def _target_probs(self) -> Tensor:
        """(K, D, V)."""
        return self.vocabulary.scatter(self._draft_probs)

    def tempered(self, temperature: float) -> "MixtureProposal":
        """The branches at another temperature; the prior keeps its own."""
        sampling = evolve(self.sampling, temperature=temperature)
        return MixtureProposal(
            self.prior, self.logits, sampling, self.vocabulary, self.prior_temperature
        )

    def weights(self) -> Tensor:
        """(K,) float64, the prior at its temperature."""
        return sampling_probs(self.prior.double(), Sampling(self.prior_temperature))

    def greedy(self) -> Tensor:
        """(K, D) int64 target ids, each branch decoded greedily; of equal tokens the first."""
        return self.vocabulary.tokens(self.logits.argmax(-1))

    def path_scores(self, paths: Tensor) -> Tensor:
        """(P, D) target ids -> (P, D) float64, log path scores of every prefix."""
        depth = torch.arange(paths.shape[1], device=paths.device)
        log_q = self._target_probs[:, depth, paths].double().log()  # K, P, D
        return (self.weights().log()[:, None, None] + log_q.cumsum(-1)).logsumexp(0)

    def root(self) -> Frontier:
        """A frontier whose state is (F, K) float64, w_z over the sum of all w.

        The sums are left out, since products over many tokens would underflow.
        """
        return Frontier(0, 1, self.weights()[None])

    def expand(self, at: Frontier, k: int) -> Children:
        width = 2 * k
        while self._saves(width):
            children = self.expand_shortlist(at, k, width)
            assert children.unlisted_bound is not None
            least, bound = children.log_q[:, -1], children.unlisted_bound
            if bool(((least > bound) | (bound == -torch.inf)).all()):
                return Children(children.tokens, children.log_q)
            width *= 2
        tokens, probs = stable_topk(self.probs(at), k)
        return Children(tokens, _log(probs))

    def expand_shortlist(self, at: Frontier, k: int, width: int) -> Children:
        """Children among the `width` most likely tokens of each branch, and a bound for others."""
        if not self._topk or self._topk[-1][0].shape[-1] < width:
            values, indices = self._draft_probs.topk(width, -1)
            self._topk[:] = [(values, indices)]
        ((values, indices),) = self._topk
        draft_ids = indices[:, at.depth, :width].unique()
        branch_probs = self._draft_probs[:, at.depth, draft_ids]
        least = values[:, at.depth, width - 1]
        tokens, probs = stable_topk(
            _mix(at.state, branch_probs), k, self.vocabulary.tokens(draft_ids)
        )
        unlisted_bound = _mix(at.state, least[:, None])[:, 0]
        return Children(tokens, _log(probs), unlisted_bound.double().log() + MARGIN)

    def _saves(self, width: int) -> bool:
        """Whether `width` tokens of each branch are much fewer than the vocabulary."""
        branches, _, size = self.logits.shape
        return 2 * branches * width < size

    def shortlisted(self, width: int) -> Proposal:
        return _Shortlist(self, width) if self._saves(width) else self

    def advance(self, at: Frontier, rows: Tensor, tokens: Tensor) -> Frontier:
        likelihood = self._target_probs[:, at.depth][:, tokens.to(self.device)].double()
        weights = at.state[rows.to(self.device)] * likelihood.T
        return Frontier(at.depth + 1, rows.shape[0], weights / weights.sum(-1, keepdim=True))

    def probs(self, at: Frontier) -> Tensor:
        return _mix(at.state, self._target_probs[:, at.depth])

    def table(self, k: int) -> Table | None:
        """The table of a single branch; several branches have a distribution for every path."""
        if self.logits.shape[0] > 1:
            return None
        return FactorizedProposal(self.logits[0], self.sampling, self.vocabulary).table(k)


def _mix(weights: Tensor, probs: Tensor) -> Tensor:
    """(F, K) weights, (K, C) probs -> (F, C), in the dtype of `probs`.

    Branch after branch: the rounding of a matrix product depends on its shape, and a token's
    probability must not depend on which other tokens are computed with it.
    """
    weights = weights.to(probs.dtype)[:, :, None]
    total = weights[:, 0] * probs[0]
    for branch in range(1, probs.shape[0]):
        total += weights[:, branch] * probs[branch]
    return total


def _log(probs: Tensor) -> Tensor:
    """float64 logs, at most 0: weights add up to 1 only nearly, and a token of probability 1 must
    not raise the score of a path, or its node would be grown before its parent."""
    return probs.double().log().clamp_(max=0.0)


@frozen(eq=False)
class _Shortlist(Proposal):
    """A mixture that examines only the `width` most likely tokens of each branch."""

    mixture: MixtureProposal
    width: int

    @property
    def max_depth(self) -> int:  # type: ignore[override]
        return self.mixture.max_depth

    @property
    def sampling(self) -> Sampling:  # type: ignore[override]
        return self.mixture.sampling

    @property
    def device(self) -> torch.device:
        return self.mixture.device

    def root(self) -> Frontier:
        return self.mixture.root()

    def expand(self, at: Frontier, k: int) -> Children:
        return self.mixture.expand_shortlist(at, k, self.width)

    def advance(self, at: Frontier, rows: Tensor, tokens: Tensor) -> Frontier:
        return self.mixture.advance(at, rows, tokens)

    def probs(self, at: Frontier) -> Tensor:
        return self.mixture.probs(at)
