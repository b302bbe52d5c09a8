"""Packed batches: many anchors in each of a few texts, drawn from a seed and the step alone."""

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from draftwood.training.features import Features
from draftwood.training.sampling import Samples


@frozen(eq=False)
class Packed:
    """features: (S, n, taps * H). tokens: (S, A, B) ids that a block is fed: the anchor, then the
    mask token. anchors: (S, A) positions. labels: (S, A, B - 1). valid: same, False past a text's
    end."""

    features: Tensor
    tokens: Tensor
    anchors: Tensor
    labels: Tensor
    valid: Tensor


def pack(
    samples: Samples,
    features: Features,
    rows: np.ndarray,
    anchors: np.ndarray,
    block: int,
    mask: int,
) -> Packed:
    """Blocks of `block` slots at anchors (S, A) of the texts `rows` (S,).

    An anchor is a token whose features do not exist yet: its block sees what stands before it.
    """
    slots = anchors[..., None] + np.arange(block)
    inside = np.minimum(slots, samples.tokens.shape[1] - 1)
    text = samples.tokens[rows[:, None, None], inside].astype(np.int64)
    fed = np.where(np.arange(block) == 0, text, mask)
    valid = slots[..., 1:] < samples.ends[rows][:, None, None]
    return Packed(
        features[rows],
        torch.from_numpy(fed),
        torch.from_numpy(anchors),
        torch.from_numpy(text[..., 1:]),
        torch.from_numpy(valid),
    )


def draw(
    samples: Samples,
    features: Features,
    key: tuple[int, int],
    *,
    batch: int,
    anchors: int,
    block: int,
    mask: int,
) -> Packed:
    """The batch of `key` = (seed, step): texts uniformly, anchors uniformly among generated tokens
    that have a successor."""
    rng = np.random.default_rng(key)
    rows = rng.integers(0, len(samples), batch)
    first = samples.starts[rows][:, None]
    last = np.maximum(samples.ends[rows][:, None] - 2, first)
    at = rng.integers(first, last + 1, (batch, anchors))
    return pack(samples, features, rows, at, block, mask)
