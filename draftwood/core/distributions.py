"""From logits to distributions: the one place where temperature and filters are applied.

Drafter and target share it, so a filter cannot mean two things in one round. It is proven equal
to Hugging Face's warpers by test, works on many rows at once, and keeps the dtype it is given:
float32 in decoding, float64 under the testing oracle.
"""

import torch
from torch import Tensor

from draftwood.core import devices
from draftwood.core.options import Sampling


def sampling_probs(logits: Tensor, sampling: Sampling) -> Tensor:
    """Distributions (..., V) from logits (..., V): temperature, then top-k, top-p, min-p,
    normalised.

    Half precisions are computed in float32. Greedy sampling gives the one-hot of the argmax
    (the first of equal ones), so that every verifier is exact at temperature zero too.
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
    """logits with what top-k, top-p and min-p drop set to -inf; at least one token stays.

    Ties at a top-k boundary all stay, and top-p keeps the smallest set whose mass reaches p
    (Holtzman et al. 2020), as Hugging Face's warpers do; of equal ones at its edge those with the
    highest ids, on every device.
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
    """Which entries make up the smallest set with at least this mass: bool, as logits."""
    ascending = logits.sort(dim=-1).values
    dropped = ascending.softmax(-1).cumsum(-1) <= 1 - top_p
    dropped[..., -1] = False
    edge = ascending.gather(-1, dropped.sum(-1, keepdim=True))
    wanted = ((ascending == edge) & ~dropped).sum(-1, keepdim=True)
    tied = logits == edge
    rank = tied.flip(-1).cumsum(-1).flip(-1)  # among the tied, from the highest id
    return (logits > edge) | (tied & (rank <= wanted))


def stable_topk(probs: Tensor, k: int, ids: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The k largest entries of each row: (tokens (..., k), values (..., k)), largest first.

    Equal values are ordered by token, at the boundary too, which `topk` alone leaves open: two
    forms of one tree policy could otherwise disagree. Zeros come last in no particular order,
    since nothing of probability zero ever becomes a node. ids: (V,) gives entry i token ids[i].
    """
    width = probs.shape[-1]
    k = min(k, width)
    if not devices.reads_without_sync(probs.device):
        return stable_topk_no_sync(probs, k, ids)
    # One entry more than asked tells whether others reach the k-th value.
    values, index = probs.topk(min(k + 1, width), -1)
    tied = values[..., 1:] == values[..., :-1]
    if not (tied.any() and (tied & (values[..., 1:] > 0)).any()):
        index, values = index[..., :k], values[..., :k]
        return (index if ids is None else ids[index]), values
    # Only a full stable sort is fair to those left out at the boundary.
    tokens = torch.arange(width, device=probs.device) if ids is None else ids
    by_token = tokens.argsort()
    order = probs[..., by_token].sort(dim=-1, descending=True, stable=True).indices[..., :k]
    index = by_token[order]
    return tokens[index], probs.gather(-1, index)


def stable_topk_no_sync(probs: Tensor, k: int, ids: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`stable_topk` where asking whether anything ties would wait for the device: three passes over
    the distribution and no sort of it. k: at most its width."""
    width = probs.shape[-1]
    tokens = torch.arange(width, device=probs.device) if ids is None else ids
    by_token = tokens.argsort()
    probs = probs[..., by_token]
    boundary = probs.topk(k, -1).values[..., -1:]
    above, level = probs > boundary, probs == boundary
    wanted = k - above.sum(-1, keepdim=True)
    kept = above | (level & (level.cumsum(-1) <= wanted))
    # Exactly k of each row: where they lie, in order of their tokens.
    place = (
        torch.where(kept, torch.arange(width, 0, -1, device=probs.device), 0).topk(k, -1).indices
    )
    values, order = probs.gather(-1, place).sort(dim=-1, descending=True, stable=True)
    return tokens[by_token[place.gather(-1, order)]], values
