"""Packed batches: many anchors in each of a few texts, drawn from a seed and the step alone."""

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from draftwood.training.features import Features
from draftwood.training.parallel import share
from draftwood.training.sampling import Samples


@frozen(eq=False)
class Packed:
    """features: (S, n, taps * H). tokens: (S, A, B) ids that a block is fed: the anchor, then the
    mask token. anchors: (S, A) positions. labels: (S, A, B - 1). valid: same, False past a text's
    end. log_p: same, float32, log of what the distribution that drew a label gave it; 0 where
    nobody asked for it. previous: same, the text's token before each label. temperatures: (S, A),
    what the text was written at."""

    features: Tensor
    tokens: Tensor
    anchors: Tensor
    labels: Tensor
    valid: Tensor
    log_p: Tensor
    previous: Tensor
    temperatures: Tensor


def draw_anchors(
    samples: Samples, key: tuple[int, int], batch: int, anchors: int
) -> tuple[np.ndarray, np.ndarray]:
    """Texts, and the anchors of drafts in them.

    Texts are drawn uniformly, anchors uniformly among generated tokens that have a successor.

    Args:
        samples: The texts.
        key: (seed, step), which the draw is a function of.
        batch: Number of texts, S.
        anchors: Number of anchors in each, A.

    Returns:
        Rows (S,) of `samples`, and positions (S, A); of several processes, this one's share.
    """
    rng = np.random.default_rng(key)
    rows = rng.integers(0, len(samples), batch)
    first = samples.starts[rows][:, None]
    last = np.maximum(samples.ends[rows][:, None] - 2, first)
    at = rng.integers(first, last + 1, (batch, anchors))
    return share(rows), share(at)


def pack(
    samples: Samples,
    features: Features,
    rows: np.ndarray,
    anchors: np.ndarray,
    block: int,
    mask: int,
    likelihoods: np.ndarray | None = None,
) -> Packed:
    """Blocks of `block` slots at anchors (S, A) of the texts `rows` (S,).

    likelihoods: (N, L) of the samples' tokens, for `log_p`.

    An anchor is a token whose features do not exist yet: its block sees what stands before it.
    """
    slots = anchors[..., None] + np.arange(block)
    inside = np.minimum(slots, samples.tokens.shape[1] - 1)
    text = samples.tokens[rows[:, None, None], inside].astype(np.int64)
    fed = np.where(np.arange(block) == 0, text, mask)
    valid = slots[..., 1:] < samples.ends[rows][:, None, None]
    log_p = np.zeros(valid.shape, np.float32)
    if likelihoods is not None:
        log_p = np.where(valid, likelihoods[rows[:, None, None], inside[..., 1:]], 0.0)
    return Packed(
        features[rows],
        torch.from_numpy(fed),
        torch.from_numpy(anchors),
        torch.from_numpy(text[..., 1:]),
        torch.from_numpy(valid),
        torch.from_numpy(log_p.astype(np.float32)),
        torch.from_numpy(text[..., :-1]),
        torch.from_numpy(samples.temperatures[rows].astype(np.float32))[:, None].expand(
            anchors.shape
        ),
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
    likelihoods: np.ndarray | None = None,
) -> Packed:
    """The batch of `key`, as `draw_anchors` says."""
    rows, at = draw_anchors(samples, key, batch, anchors)
    return pack(samples, features, rows, at, block, mask, likelihoods)
