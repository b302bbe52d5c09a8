"""Draft vocabularies that are smaller than the target's."""

import torch
from attrs import frozen
from torch import Tensor


@frozen(eq=False)
class Vocabulary:
    """Where a reduced draft vocabulary lies in the target's: ids (V_draft,) int64, or None if
    they are the same. size: of the target's vocabulary."""

    size: int
    ids: Tensor | None = None

    def tokens(self, draft_ids: Tensor) -> Tensor:
        return draft_ids if self.ids is None else self.ids[draft_ids]

    def scatter(self, law: Tensor) -> Tensor:
        """(..., V_draft) -> (..., V): unmapped ids have probability zero."""
        if self.ids is None and law.shape[-1] == self.size:
            return law
        full = law.new_zeros((*law.shape[:-1], self.size))
        ids = self.ids if self.ids is not None else torch.arange(law.shape[-1], device=law.device)
        return full.index_copy(-1, ids, law)
