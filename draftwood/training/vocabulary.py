"""Reduced draft vocabularies: which tokens a drafter can propose, and how it learns from text that
contains other tokens.

The head over a large vocabulary can cost more than the rest of a small model, and most of a text
is made of few tokens. A drafter's distribution is then over those alone; the target's stays whole.
"""

import numpy as np
import torch
from torch import Tensor

from draftwood.training.sampling import Samples


def most_frequent(samples: Samples, prompts: np.ndarray, count: int) -> Tensor:
    """(count,) int64 token ids, ascending: those with the largest shares of what the target wrote
    and of the prompts, added up. The text that it writes is the better guide, but there is less of
    it, and names in prompts are repeated after them.

    prompts: (V,) how often each token occurs in prompts.
    """
    written = counts(samples, len(prompts))
    shares = written / max(written.sum(), 1) + prompts / max(prompts.sum(), 1)
    order = np.lexsort((np.arange(len(shares)), -shares))
    return torch.from_numpy(np.sort(order[:count]))


def coverage(samples: Samples, ids: Tensor, size: int) -> float:
    """The share of the written tokens that are among `ids`."""
    written = counts(samples, size)
    return float(written[ids.cpu().numpy()].sum() / max(written.sum(), 1))


def counts(samples: Samples, size: int) -> np.ndarray:
    """(size,) how often the target wrote each token."""
    places = np.arange(samples.tokens.shape[1])
    written = (places >= samples.starts[:, None]) & (places < samples.ends[:, None])
    return np.bincount(samples.tokens[written], minlength=size)


def offsets(ids: Tensor) -> Tensor:
    """(V_draft,) target ids -> what checkpoints store of them, target id - draft id."""
    return ids - torch.arange(len(ids), device=ids.device)


def as_drafts(labels: Tensor, valid: Tensor, ids: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Labels (..., D) of a block by their draft ids, and `valid` up to the first that has none:
    a draft after it can never be accepted. ids: (V_draft,) target ids. size: of the target's
    vocabulary."""
    found = draft_ids(labels, ids, size)
    known = (found >= 0).cumprod(-1).bool()
    return found.clamp_min(0), valid & known


def draft_ids(tokens: Tensor, ids: Tensor, size: int) -> Tensor:
    """The target's tokens (...) by their draft ids, -1 for those that have none."""
    places = torch.full((size,), -1, device=tokens.device)
    places[ids] = torch.arange(len(ids), device=tokens.device)
    return places[tokens]
