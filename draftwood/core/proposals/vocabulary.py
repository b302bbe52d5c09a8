"""Draft vocabularies that are smaller than the target's."""

import torch
from attrs import field, frozen
from torch import Tensor


@frozen(eq=False)
class Vocabulary:
    """Where a reduced draft vocabulary lies in the target's: ids (V_draft,) int64, or None if
    they are the same. size: of the target's vocabulary."""

    size: int
    ids: Tensor | None = None
    _places: dict[int, int] = field(factory=dict, init=False, repr=False)

    def tokens(self, draft_ids: Tensor) -> Tensor:
        return draft_ids if self.ids is None else self.ids[draft_ids]

    def draft_id(self, token: int) -> int:
        """Of one of the target's tokens; -1 for one that the drafter cannot say."""
        if self.ids is None:
            return token
        if not self._places:
            self._places.update((each, place) for place, each in enumerate(self.ids.tolist()))
        return self._places.get(token, -1)

    def scatter(self, probs: Tensor) -> Tensor:
        """(..., V_draft) -> (..., V): unmapped ids have probability zero."""
        if self.ids is None and probs.shape[-1] == self.size:
            return probs
        full = probs.new_zeros((*probs.shape[:-1], self.size))
        ids = (
            self.ids if self.ids is not None else torch.arange(probs.shape[-1], device=probs.device)
        )
        return full.index_copy(-1, ids, probs)
