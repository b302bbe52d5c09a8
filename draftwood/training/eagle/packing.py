"""Whole texts and the anchors of drafts in them, drawn from a seed and the step alone."""

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from draftwood.training.features import Features
from draftwood.training.packing import draw_anchors
from draftwood.training.sampling import Samples


@frozen(eq=False)
class Packed:
    """tokens: (S, n). features: (S, n, layers * H). anchors: (S, A) positions. ends: (S,), one past
    the last token that counts. temperatures: (S,), what each text was written at."""

    tokens: Tensor
    features: Tensor
    anchors: Tensor
    ends: Tensor
    temperatures: Tensor

    def parts(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """All of them, in order."""
        return self.tokens, self.features, self.anchors, self.ends, self.temperatures

    def to(self, device: torch.device) -> "Packed":
        return Packed(*(part.to(device) for part in self.parts()))


def pack(samples: Samples, features: Features, rows: np.ndarray, anchors: np.ndarray) -> Packed:
    """The texts `rows` (S,), with drafts at anchors (S, A)."""
    return Packed(
        torch.from_numpy(samples.tokens[rows].astype(np.int64)),
        features[rows],
        torch.from_numpy(anchors),
        torch.from_numpy(samples.ends[rows].astype(np.int64)),
        torch.from_numpy(samples.temperatures[rows].astype(np.float32)),
    )


def draw(
    samples: Samples, features: Features, key: tuple[int, int], *, batch: int, anchors: int
) -> Packed:
    """The batch of `key`, as `draw_anchors` says."""
    return pack(samples, features, *draw_anchors(samples, key, batch, anchors))
