"""Mixture proposals: a few factorized branches, weighed anew along every path."""

import torch
from attrs import evolve, field, frozen
from torch import Tensor

from draftwood.core.distributions import sampling_probs, stable_topk
from draftwood.core.options import Sampling
from draftwood.core.proposals.base import Children, Frontier, Proposal, Table
from draftwood.core.proposals.factorized import FactorizedProposal
from draftwood.core.proposals.vocabulary import Vocabulary

MARGIN = 1e-6
"""What a bound is raised by, in nats: more than float32 distributions can be rounded by."""


@frozen(eq=False)
class MixtureProposal(Proposal):
    """q(x_1..d) = sum_z q(z) prod_i q_i(x_i | z): K branches, one pass (DBlast, 2608.05448).

    prior: (K,) logits of the branches, -inf for one that is never taken. logits: (K, D, V_draft),
    [z, d] for the token at depth d + 1 in branch z. Temperature and filters apply to each branch
    before they are mixed; prior_temperature is the prior's own (Z_T; 0 keeps its best branch only).

    After a path the branches weigh w_z = q(z) prod_i q_i(x_i | z), the path's score is their sum,
    and the next distribution is sum_z w_z q_{d+1}(x | z) / sum_z w_z.

    The best token of a mixture may be the best of no branch, so joining branches' best tokens is
    not enough by itself. But a token outside every branch's n best is at most as likely as
    sum_z w_z times branch z's n-th largest: what lies above that bound is right, and where
    something does not, n is doubled.
    """

    prior: Tensor
    logits: Tensor
    sampling: Sampling
    vocabulary: Vocabulary
    prior_temperature: float = 1.0
    _distributions: "_Distributions" = field(init=False, repr=False)

    @_distributions.default
    def _unmade(self) -> "_Distributions":
        return _Distributions(self.logits, self.sampling, self.vocabulary)

    @property
    def max_depth(self) -> int:  # type: ignore[override]
        return self.logits.shape[1]

    @property
    def device(self) -> torch.device:
        return self.logits.device

    def tempered(self, temperature: float) -> "MixtureProposal":
        """Branches at another temperature; the prior keeps its own."""
        sampling = evolve(self.sampling, temperature=temperature)
        return MixtureProposal(
            self.prior, self.logits, sampling, self.vocabulary, self.prior_temperature
        )

    def weights(self) -> Tensor:
        """(K,) float64, the tempered prior."""
        return sampling_probs(self.prior.double(), Sampling(self.prior_temperature))

    def greedy(self) -> Tensor:
        """(K, D) int64, each branch decoded greedily, as target ids; of equal tokens the first."""
        return self.vocabulary.tokens(self.logits.argmax(-1))

    def path_scores(self, paths: Tensor) -> Tensor:
        """(P, D) target ids -> (P, D) float64, log path scores of every prefix."""
        depth = torch.arange(paths.shape[1], device=paths.device)
        log_q = self._distributions.whole[:, depth, paths].double().log()  # K, P, D
        return (self.weights().log()[:, None, None] + log_q.cumsum(-1)).logsumexp(0)

    def root(self) -> Frontier:
        """state: (F, K) float64, the w_z of each node's path over their sum. Sums stay out of it,
        since products over many tokens would underflow."""
        return Frontier(0, 1, self.weights()[None])

    def expand(self, at: Frontier, k: int) -> Children:
        width = 2 * k
        while self._distributions.shortens(width):
            children = self._among(at, k, width)
            assert children.unlisted_bound is not None
            least, unlisted_bound = children.log_q[:, -1], children.unlisted_bound
            if bool(((least > unlisted_bound) | (unlisted_bound == -torch.inf)).all()):
                return Children(children.tokens, children.log_q)
            width *= 2
        tokens, probs = stable_topk(self.probs(at), k)
        return Children(tokens, _log(probs))

    def _among(self, at: Frontier, k: int, width: int) -> Children:
        """Children among each branch's `width` best tokens, and the bound of the others."""
        ids, distributions, rest = self._distributions.short(at.depth, width)
        tokens, probs = stable_topk(_mixed(at.state, distributions), k, ids)
        unlisted_bound = _mixed(at.state, rest[:, None])[:, 0]
        return Children(tokens, _log(probs), unlisted_bound.double().log() + MARGIN)

    def shortlisted(self, width: int) -> Proposal:
        return _Shortlist(self, width) if self._distributions.shortens(width) else self

    def advance(self, at: Frontier, rows: Tensor, tokens: Tensor) -> Frontier:
        likelihood = self._distributions.whole[:, at.depth][:, tokens.to(self.device)].double()
        weights = at.state[rows.to(self.device)] * likelihood.T
        return Frontier(at.depth + 1, rows.shape[0], weights / weights.sum(-1, keepdim=True))

    def probs(self, at: Frontier) -> Tensor:
        return _mixed(at.state, self._distributions.whole[:, at.depth])

    def table(self, k: int) -> Table | None:
        """One branch is a factorized proposal; several have a distribution for every path."""
        if self.logits.shape[0] > 1:
            return None
        return FactorizedProposal(self.logits[0], self.sampling, self.vocabulary).table(k)


def _mixed(weights: Tensor, distributions: Tensor) -> Tensor:
    """(F, K) weights, (K, C) distributions -> (F, C), in the distributions' dtype.

    Branch after branch: a matrix product's rounding depends on its shape, and a token's
    probability must not depend on which others are looked at beside it.
    """
    weights = weights.to(distributions.dtype)[:, :, None]
    total = weights[:, 0] * distributions[0]
    for branch in range(1, distributions.shape[0]):
        total += weights[:, branch] * distributions[branch]
    return total


def _log(probs: Tensor) -> Tensor:
    """float64, at most 0: weights add up to 1 only nearly, and a certain token must not raise the
    score of a path, or it would be grown before its parent."""
    return probs.double().log().clamp_(max=0.0)


class _Distributions:
    """The branches' distributions, each form made when it is first asked for."""

    def __init__(self, logits: Tensor, sampling: Sampling, vocabulary: Vocabulary) -> None:
        self.logits, self.sampling, self.vocabulary = logits, sampling, vocabulary
        self._draft: Tensor | None = None
        self._whole: Tensor | None = None
        self._best: tuple[Tensor, Tensor] | None = None

    @property
    def draft(self) -> Tensor:
        """(K, D, V_draft)."""
        if self._draft is None:
            self._draft = sampling_probs(self.logits, self.sampling)
        return self._draft

    @property
    def whole(self) -> Tensor:
        """(K, D, V), over the target's vocabulary."""
        if self._whole is None:
            self._whole = self.vocabulary.scatter(self.draft)
        return self._whole

    def shortens(self, width: int) -> bool:
        """Whether `width` tokens of each branch are much less than the vocabulary."""
        branches, _, size = self.logits.shape
        return 2 * branches * width < size

    def short(self, depth: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
        """The `width` best tokens of every branch at `depth`: their C target ids, their
        distributions (K, C), and each branch's `width`-th largest probability, (K,)."""
        if self._best is None or self._best[0].shape[-1] < width:
            found = self.draft.topk(width, -1)
            self._best = found.values, found.indices
        values, tokens = self._best
        at = tokens[:, depth, :width].unique()
        return self.vocabulary.tokens(at), self.draft[:, depth, at], values[:, depth, width - 1]


@frozen(eq=False)
class _Shortlist(Proposal):
    """`whole`, looking no further than the `width` best tokens of each of its branches."""

    whole: MixtureProposal
    width: int

    @property
    def max_depth(self) -> int:  # type: ignore[override]
        return self.whole.max_depth

    @property
    def sampling(self) -> Sampling:  # type: ignore[override]
        return self.whole.sampling

    @property
    def device(self) -> torch.device:
        return self.whole.device

    def root(self) -> Frontier:
        return self.whole.root()

    def expand(self, at: Frontier, k: int) -> Children:
        return self.whole._among(at, k, self.width)

    def advance(self, at: Frontier, rows: Tensor, tokens: Tensor) -> Frontier:
        return self.whole.advance(at, rows, tokens)

    def probs(self, at: Frontier) -> Tensor:
        return self.whole.probs(at)
