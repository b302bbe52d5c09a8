"""Draft vocabularies that are smaller than the target's."""

import torch
from attrs import field, frozen
from torch import Tensor


@frozen(eq=False)
class Vocabulary:
    """Maps a draft vocabulary to the target's.

    Attributes:
        size: V of the target.
        ids: (V_draft,) int64, the target id of each draft id; None if the ids are the same.
    """

    size: int
    ids: Tensor | None = None
    _draft_ids: dict[int, int] = field(factory=dict, init=False, repr=False)

    def tokens(self, draft_ids: Tensor) -> Tensor:
        """The target ids of draft ids."""
        return draft_ids if self.ids is None else self.ids[draft_ids]

    def draft_id(self, token: int) -> int:
        """The draft id of a target id; -1 for a token that the drafter cannot propose."""
        if self.ids is None:
            return token
        if not self._draft_ids:
            target_ids = self.ids.tolist()
            self._draft_ids.update((target, draft) for draft, target in enumerate(target_ids))
        return self._draft_ids.get(token, -1)

    def scatter(self, probs: Tensor) -> Tensor:
        """(..., V_draft) -> (..., V): other ids have probability zero."""
        if self.ids is None and probs.shape[-1] == self.size:
            return probs
        full = probs.new_zeros((*probs.shape[:-1], self.size))
        ids = (
            self.ids if self.ids is not None else torch.arange(probs.shape[-1], device=probs.device)
        )
        return full.index_copy(-1, ids, probs)
