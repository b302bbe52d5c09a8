"""The selector of DFlash 2: scores of a candidate that depend on the token before it."""

import torch
from torch import Tensor, nn

from draftwood.plugins.drafters.dflash.config import DFlashConfig


class Selector(nn.Module):
    """score(candidate | previous) = logit + <P[previous] * h_proj(hidden), S[candidate]>.

    P, S: (V, rank) codebooks of predecessors and successors, rows of the drafter's own vocabulary.
    A previous token that has no row is one that it cannot say: nothing is known of what follows it.
    """

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        rank = config.selector_rank
        self.top_k = config.selector_top_k
        self.hidden_projection = nn.Linear(config.hidden_size, rank, bias=False)
        self.predecessor_codebook = nn.Parameter(torch.empty(config.draft_vocab_size, rank))
        self.successor_codebook = nn.Parameter(torch.empty(config.draft_vocab_size, rank))

    @property
    def codebooks(self) -> tuple[nn.Parameter, nn.Parameter]:
        return self.predecessor_codebook, self.successor_codebook

    def scores(self, logits: Tensor, hidden: Tensor, anchor: int) -> tuple[Tensor, Tensor, Tensor]:
        """Candidates and their scores, for a Markov proposal.

        logits: (D, V) and hidden: (D, d) of the mask slots; anchor: the token before them.
        Returns candidates (D, C) int64 (an unordered set per position), first (C,) given the
        anchor, and pair (D - 1, C, C): [d, i, j] of candidate j at depth d + 2 after candidate i.
        """
        best, candidates = self._candidates(logits)
        gates = self.hidden_projection(hidden)
        known = 0 <= anchor < len(self.predecessor_codebook)
        first = candidates.new_full((1, candidates.shape[1]), anchor if known else 0)
        before = torch.cat([first, candidates[:-1]])
        left = self.predecessor_codebook[before] * gates[:, None]
        if not known:  # asked of the anchor alone: candidates have rows
            left[0] = 0.0
        right = self.successor_codebook[candidates]
        scores = best[:, None] + left @ right.mT
        return candidates, scores[0, 0], scores[1:]

    def likeliest(self, logits: Tensor, hidden: Tensor, previous: Tensor) -> Tensor:
        """(...) int64 best candidates after `previous` (...), from logits (..., V)."""
        best, candidates = self._candidates(logits)
        left = self._left(hidden, previous)
        right = self.successor_codebook[candidates]
        winner = (best + (right @ left[..., None])[..., 0]).argmax(-1, keepdim=True)
        return candidates.gather(-1, winner)[..., 0]

    def added(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """What every token's logit grows by after `previous` (...), for training: (..., V)."""
        return self._left(hidden, previous) @ self.successor_codebook.mT

    def _left(self, hidden: Tensor, previous: Tensor) -> Tensor:
        known = (previous >= 0)[..., None]
        rows = self.predecessor_codebook[previous.clamp_min(0)]
        return rows * known * self.hidden_projection(hidden)

    def initialise(self) -> None:
        """Silent at first: no successor is known."""
        nn.init.normal_(self.predecessor_codebook, std=0.3)
        nn.init.zeros_(self.successor_codebook)

    def _candidates(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Values and tokens (..., C) of the likeliest tokens, in no order."""
        return logits.topk(min(self.top_k, logits.shape[-1]), sorted=False)
