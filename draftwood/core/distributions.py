"""From logits to distributions: the one place where temperature and filters are applied.

Drafter and target share it, so that a filter means the same for both. Tests compare it with
Hugging Face's warpers. It works on many rows at once and keeps the dtype of its input: float32 in
decoding, float64 under the testing oracle.
"""

import torch
from torch import Tensor

from draftwood.core import devices
from draftwood.core.options import Sampling


def sampling_probs(logits: Tensor, sampling: Sampling) -> Tensor:
    """Distributions from logits: temperature, then top-k, top-p and min-p, normalised.

    Greedy sampling gives the one-hot of the argmax (the first of equal ones), so that every
    verifier is exact at temperature zero too.

    Args:
        logits: (..., V); half precisions are computed in float32.
        sampling: Temperature and filters.

    Returns:
        (..., V) probabilities.
    """
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    if sampling.greedy:
        hot = torch.zeros_like(logits)
        return hot.scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    if sampling.temperature != 1.0:
        # Subtracting the largest first keeps tiny temperatures finite.
        logits = (logits - logits.amax(-1, keepdim=True)) / sampling.temperature
    return filtered(logits, sampling).softmax(-1)


def filtered(logits: Tensor, sampling: Sampling) -> Tensor:
    """Logits (..., V) in which top-k, top-p and min-p set tokens to -inf; at least one stays.

    Ties at a top-k boundary all stay, and top-p keeps the smallest set whose mass reaches p
    (Holtzman et al. 2020), as in Hugging Face's warpers. Of equal tokens at the edge of top-p those
    with the highest ids stay, on every device.
    """
    if sampling.top_k is not None and sampling.top_k < logits.shape[-1]:
        boundary = logits.topk(sampling.top_k, -1).values[..., -1:]
        logits = logits.masked_fill(logits < boundary, -torch.inf)
    if sampling.top_p is not None and sampling.top_p < 1.0:
        logits = logits.masked_fill(~_most_mass(logits, sampling.top_p), -torch.inf)
    if sampling.min_p is not None and sampling.min_p > 0.0:
        probs = logits.softmax(-1)
        floor = sampling.min_p * probs.amax(-1, keepdim=True)
        logits = logits.masked_fill(probs < floor, -torch.inf)
    return logits


def _most_mass(logits: Tensor, top_p: float) -> Tensor:
    """Whether an entry is in the smallest set with at least this mass; bool, shaped as logits."""
    ascending = logits.sort(dim=-1).values
    dropped = ascending.softmax(-1).cumsum(-1) <= 1 - top_p
    dropped[..., -1] = False
    edge = ascending.gather(-1, dropped.sum(-1, keepdim=True))
    kept_ties = ((ascending == edge) & ~dropped).sum(-1, keepdim=True)
    tied = logits == edge
    rank = tied.flip(-1).cumsum(-1).flip(-1)  # among the tied, from the highest id
    return (logits > edge) | (tied & (rank <= kept_ties))


def stable_topk(probs: Tensor, k: int, ids: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The k largest entries of each row, largest first, equal ones by token.

    `topk` alone leaves the order of equal entries open, at the boundary too, and two forms of one
    tree policy could differ. Zeros come last in no particular order, since a token of probability
    zero never becomes a node.

    Args:
        probs: (..., V).
        k: Reduced to V if it is larger.
        ids: (V,) gives entry i the token ids[i].

    Returns:
        Tokens and values, both (..., k).
    """
    width = probs.shape[-1]
    k = min(k, width)
    if not devices.reads_without_sync(probs.device):
        return stable_topk_no_sync(probs, k, ids)
    # One entry more than needed shows whether others equal the k-th value.
    values, index = probs.topk(min(k + 1, width), -1)
    tied = values[..., 1:] == values[..., :-1]
    if not (tied.any() and (tied & (values[..., 1:] > 0)).any()):
        index, values = index[..., :k], values[..., :k]
        return (index if ids is None else ids[index]), values
    # Ties at the boundary need a full stable sort.
    tokens = torch.arange(width, device=probs.device) if ids is None else ids
    by_token = tokens.argsort()
    order = probs[..., by_token].sort(dim=-1, descending=True, stable=True).indices[..., :k]
    index = by_token[order]
    return tokens[index], probs.gather(-1, index)


def stable_topk_no_sync(probs: Tensor, k: int, ids: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`stable_topk` for devices where checking for ties would wait.

    Goes over the distribution three times and does not sort it; k is at most V.
    """
    width = probs.shape[-1]
    tokens = torch.arange(width, device=probs.device) if ids is None else ids
    by_token = tokens.argsort()
    probs = probs[..., by_token]
    boundary = probs.topk(k, -1).values[..., -1:]
    above, level = probs > boundary, probs == boundary
    room = k - above.sum(-1, keepdim=True)
    kept = above | (level & (level.cumsum(-1) <= room))
    # The places of exactly k entries per row, in order of their tokens.
    descending = torch.arange(width, 0, -1, device=probs.device)
    place = torch.where(kept, descending, 0).topk(k, -1).indices
    values, order = probs.gather(-1, place).sort(dim=-1, descending=True, stable=True)
    return tokens[by_token[place.gather(-1, order)]], values
