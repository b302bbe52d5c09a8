"""Reduced draft vocabularies: which tokens a drafter can say, and what it learns of a text with
others in it.

The head over a large vocabulary can cost more than the rest of a small model, and most of a text
is made of few tokens. A drafter's law is then over those alone; the target's stays whole.
"""

import numpy as np
import torch
from torch import Tensor

from draftwood.training.sampling import Samples


def most_frequent(samples: Samples, count: int, size: int) -> Tensor:
    """(count,) int64 token ids, ascending: those that the target wrote most often, then those
    that are most frequent in its prompts. size: of the target's vocabulary."""
    written, given = (_counts(samples, size, generated) for generated in (True, False))
    order = np.lexsort((np.arange(size), -given, -written))
    return torch.from_numpy(np.sort(order[:count]))


def coverage(samples: Samples, ids: Tensor, size: int) -> float:
    """The share of the written tokens that are among `ids`."""
    written = _counts(samples, size, generated=True)
    return float(written[ids.cpu().numpy()].sum() / max(written.sum(), 1))


def _counts(samples: Samples, size: int, generated: bool) -> np.ndarray:
    """(size,) how often each token occurs in what was generated, or in the prompts."""
    places = np.arange(samples.tokens.shape[1])
    prompt = places < samples.starts[:, None]
    inside = (places < samples.ends[:, None]) & (prompt != generated)
    return np.bincount(samples.tokens[inside], minlength=size)


def offsets(ids: Tensor) -> Tensor:
    """(V_draft,) target ids -> what checkpoints store of them, target id - draft id."""
    return ids - torch.arange(len(ids), device=ids.device)


def as_drafts(labels: Tensor, valid: Tensor, ids: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Labels (..., D) of a block by their draft ids, and `valid` up to the first that has none:
    a draft after it can never be accepted. ids: (V_draft,) target ids. size: of the target's
    vocabulary."""
    places = torch.full((size,), -1, device=labels.device)
    places[ids] = torch.arange(len(ids), device=labels.device)
    found = places[labels]
    known = (found >= 0).cumprod(-1).bool()
    return found.clamp_min(0), valid & known
