"""The selector of DFlash 2: scores of a candidate that depend on the token before it."""

import torch
from torch import Tensor, nn

from draftwood.plugins.drafters.dflash.config import DFlashConfig


class Selector(nn.Module):
    """score(candidate | previous) = logit + <P[previous] * h_proj(hidden), S[candidate]>.

    P and S, (V_draft, rank), are codebooks of predecessors and successors, rows of the drafter's
    own vocabulary. A previous token outside it has no row, and the term after its logit is zero.
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

        Args:
            logits: (D, V_draft) of the mask slots.
            hidden: (D, d) of the mask slots.
            anchor: The token before them, in the draft vocabulary; -1 for one outside it.

        Returns:
            Candidates (D, C) int64, an unordered set per position; their scores (C,) given the
            anchor; and (D - 1, C, C), [d, i, j] of candidate j at depth d + 2 after candidate i.
        """
        values, candidates = self._candidates(logits)
        gates = self.hidden_projection(hidden)
        has_row = 0 <= anchor < len(self.predecessor_codebook)
        first = candidates.new_full((1, candidates.shape[1]), anchor if has_row else 0)
        before = torch.cat([first, candidates[:-1]])
        left = self.predecessor_codebook[before] * gates[:, None]
        if not has_row:  # only the anchor can be outside: candidates have rows
            left[0] = 0.0
        right = self.successor_codebook[candidates]
        scores = values[:, None] + left @ right.mT
        return candidates, scores[0, 0], scores[1:]

    def likeliest(self, logits: Tensor, hidden: Tensor, previous: Tensor) -> Tensor:
        """(...) int64 best candidates after `previous` (...), from logits (..., V_draft)."""
        values, candidates = self._candidates(logits)
        left = self._left(hidden, previous)
        right = self.successor_codebook[candidates]
        best = (values + (right @ left[..., None])[..., 0]).argmax(-1, keepdim=True)
        return candidates.gather(-1, best)[..., 0]

    def added(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """(..., V_draft) terms added to every token's logit after `previous`, for training."""
        return self._left(hidden, previous) @ self.successor_codebook.mT

    def _left(self, hidden: Tensor, previous: Tensor) -> Tensor:
        has_row = (previous >= 0)[..., None]
        rows = self.predecessor_codebook[previous.clamp_min(0)]
        return rows * has_row * self.hidden_projection(hidden)

    def initialise(self) -> None:
        """Start with terms of zero: the successor codebook is zero."""
        nn.init.normal_(self.predecessor_codebook, std=0.3)
        nn.init.zeros_(self.successor_codebook)

    def _candidates(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Values and tokens (..., C) of the highest logits, in no order."""
        return logits.topk(min(self.top_k, logits.shape[-1]), sorted=False)
