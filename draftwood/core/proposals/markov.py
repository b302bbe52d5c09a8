"""Markov proposals: each position given the token before it."""

import torch
from attrs import evolve, field, frozen
from torch import Tensor

from draftwood.core.distributions import sampling_probs, stable_topk
from draftwood.core.options import Sampling
from draftwood.core.proposals.base import Children, Frontier, Proposal
from draftwood.core.proposals.table import Row, Table


@frozen(eq=False)
class MarkovProposal(Proposal):
    """A distribution depends on the parent token, over a few candidates a position (DFlash 2).

    q = softmax(score / T), filters applied, over the candidates of a position. A parent must be
    one of the candidates of its position.

    Attributes:
        candidates: (D, C) int64 target ids of each position.
        first: (C,) scores at depth 1 given the anchor.
        pair: (D-1, C, C) scores; [d, i, j] is candidate j at depth d + 2 after candidate i at
            depth d + 1.
        vocab_size: V of the target.
        min_score_temperature: See `Proposal`. Conditioning on the parent makes q sharper than a
            factorized one, so drafters may set a higher one.
    """

    candidates: Tensor
    first: Tensor
    pair: Tensor
    sampling: Sampling
    vocab_size: int
    min_score_temperature: float = Proposal.min_score_temperature  # type: ignore[misc]
    _cache: dict[int, Tensor] = field(factory=dict, init=False, repr=False)

    @property
    def max_depth(self) -> int:  # type: ignore[override]
        return self.candidates.shape[0]

    @property
    def device(self) -> torch.device:
        return self.candidates.device

    def tempered(self, temperature: float) -> "MarkovProposal":
        sampling = evolve(self.sampling, temperature=temperature)
        return evolve(self, sampling=sampling)

    def _candidate_probs(self, at: Frontier) -> Tensor:
        """(F, C) distributions over the candidates of the next depth."""
        depth = at.depth
        if depth not in self._cache:
            scores = self.first[None] if depth == 0 else self.pair[depth - 1]
            self._cache[depth] = sampling_probs(scores, self.sampling)
        return self._cache[depth][at.state]

    def root(self) -> Frontier:
        return Frontier(0, 1, torch.zeros(1, dtype=torch.long, device=self.device))

    def expand(self, at: Frontier, k: int) -> Children:
        tokens, probs = stable_topk(self._candidate_probs(at), k, self.candidates[at.depth])
        return Children(tokens, probs.double().log())

    def advance(self, at: Frontier, rows: Tensor, tokens: Tensor) -> Frontier:
        hits = self.candidates[at.depth][None] == tokens.to(self.device)[:, None]
        return Frontier(at.depth + 1, rows.shape[0], hits.long().argmax(1))

    def probs(self, at: Frontier) -> Tensor:
        probs = self._candidate_probs(at)
        full = probs.new_zeros((at.size, self.vocab_size))
        return full.index_copy(-1, self.candidates[at.depth], probs)

    def table(self, k: int) -> Table:
        """The root's row, then one row for each candidate of each depth but the last."""
        scores = torch.cat((self.first[None], self.pair.flatten(0, 1)))
        log_probs = sampling_probs(scores, self.sampling).double().log().detach().cpu().numpy()
        candidates = self.candidates.tolist()
        width = len(candidates[0])

        def make_row(index: int) -> Row:
            depth = (index + width - 1) // width
            tokens, log_q = candidates[depth], log_probs[index].tolist()
            order = sorted(range(width), key=log_q.__getitem__, reverse=True)
            if len(set(log_q)) < width:  # equal ones are ordered by token
                order.sort(key=lambda i: (-log_q[i], tokens[i]))
            order = order[:k]
            last = depth + 1 == len(candidates)
            next_rows = [-1 if last else 1 + depth * width + i for i in order]
            return Row([tokens[i] for i in order], [log_q[i] for i in order], next_rows)

        return Table.lazy(make_row)
