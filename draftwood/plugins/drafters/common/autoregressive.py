"""Shared by drafters that run one forward pass per tree level (EAGLE-3, a draft model)."""

from abc import abstractmethod
from typing import Any, ClassVar, Self, cast

import torch
from attrs import evolve
from torch import Tensor

from draftwood.core.distributions import sampling_probs, stable_topk
from draftwood.core.proposals import Children, Frontier, Proposal, Vocabulary

MAX_WAITING = 32
"""Committed tokens that wait for the forward pass of the next proposal. More of them (a prompt, or
tokens committed while nothing was drafted) are run on commit, so drafting times exclude them."""

CHUNK = 1024
"""Most rows of one forward pass, whose mask is rows x context."""


class AutoregressiveProposal(Proposal):
    """Distributions from the logits of every node.

    Attributes:
        vocabulary: Maps the draft vocabulary to the target's.
    """

    pass_per_level: ClassVar[bool] = True
    vocabulary: Vocabulary

    @abstractmethod
    def logits_at(self, at: Frontier) -> Tensor:
        """(F, V_draft)."""

    def tempered(self, temperature: float) -> Self:
        sampling = evolve(self.sampling, temperature=temperature)
        return evolve(cast(Any, self), sampling=sampling)

    def expand(self, at: Frontier, k: int) -> Children:
        tokens, probs = stable_topk(self._draft_probs(at), k, self.vocabulary.ids)
        return Children(tokens, probs.double().log())

    def probs(self, at: Frontier) -> Tensor:
        return self.vocabulary.scatter(self._draft_probs(at))

    def _draft_probs(self, at: Frontier) -> Tensor:
        with torch.inference_mode():
            return sampling_probs(self.logits_at(at), self.sampling)


def children_mask(parents: Tensor, rows: Tensor, written: int) -> Tensor:
    """Which rows children attend to.

    Args:
        parents: (F, m) bool, the rows that each node of a frontier attends to.
        rows: (F',) int64, the parent of each child.
        written: Rows before the children's own, m or more; those after m are not attended to.

    Returns:
        (F', written + F') bool: the parent's rows and the child's own.
    """
    count = rows.shape[0]
    mask = torch.zeros((count, written + count), dtype=torch.bool, device=parents.device)
    mask[:, : parents.shape[1]] = parents[rows]
    mask[:, written:].fill_diagonal_(fill_value=True)
    return mask
