"""The selector of DFlash 2: scores of a candidate that depend on the token before it."""

import torch
from torch import Tensor, nn

from draftwood.plugins.drafters.dflash.config import DFlashConfig


class Selector(nn.Module):
    """score(candidate | previous) = logit + <P[previous] * h_proj(hidden), S[candidate]>.

    P, S: (V, rank) codebooks of predecessors and successors.
    """

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        rank = config.selector_rank
        self.top_k = config.selector_top_k
        self.hidden_projection = nn.Linear(config.hidden_size, rank, bias=False)
        self.predecessor_codebook = nn.Parameter(torch.empty(config.vocab_size, rank))
        self.successor_codebook = nn.Parameter(torch.empty(config.vocab_size, rank))

    def scores(self, logits: Tensor, hidden: Tensor, anchor: int) -> tuple[Tensor, Tensor, Tensor]:
        """Candidates and their scores, for a Markov proposal.

        logits: (D, V) and hidden: (D, d) of the mask slots; anchor: the token before them.
        Returns candidates (D, C) int64 (an unordered set per position), first (C,) given the
        anchor, and pair (D - 1, C, C): [d, i, j] of candidate j at depth d + 2 after candidate i.
        """
        best, candidates = logits.topk(min(self.top_k, logits.shape[-1]), sorted=False)
        gates = self.hidden_projection(hidden)
        before = torch.cat([candidates.new_full((1, candidates.shape[1]), anchor), candidates[:-1]])
        left = self.predecessor_codebook[before] * gates[:, None]
        right = self.successor_codebook[candidates]
        scores = best[:, None] + left @ right.mT
        return candidates, scores[0, 0], scores[1:]
