"""Muon: momentum, orthogonalised, for the hidden matrices of a network (Jordan et al. 2024)."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn


class Muon:
    """Steps along momentum whose singular values are all brought near one.

    Matrices of the same shape are stacked and go through Newton-Schulz together: a deep, narrow
    model has hundreds of small ones, and on a CPU calls are what they cost.
    """

    def __init__(self, params: Sequence[nn.Parameter], momentum: float = 0.95) -> None:
        self.momentum = momentum
        shapes = sorted({tuple(p.shape) for p in params})
        self.groups = [[p for p in params if tuple(p.shape) == shape] for shape in shapes]
        self.buffers = [torch.zeros(len(g), *g[0].shape, device=g[0].device) for g in self.groups]

    @torch.no_grad()
    def step(self, lr: float, weight_decay: float) -> None:
        """One update from the parameters' `.grad`; lr is the spectral norm of a square's step."""
        for group, buffer in zip(self.groups, self.buffers, strict=True):
            grad = torch.stack([cast(Tensor, p.grad) for p in group]).float()
            buffer.lerp_(grad, 1 - self.momentum)
            update = orthogonalise(grad.lerp(buffer, self.momentum))
            rows, columns = group[0].shape
            update = update.float() * max(1.0, rows / columns) ** 0.5
            for p, u in zip(group, update, strict=True):
                p.mul_(1 - lr * weight_decay).sub_(u, alpha=lr)


def orthogonalise(g: Tensor, steps: int = 5) -> Tensor:
    """The nearest semi-orthogonal matrices to g (n, rows, columns), roughly, in bfloat16.

    Newton-Schulz with the quintic of the Muon write-up: singular values end within (0.7, 1.2).
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.bfloat16()
    if tall := x.shape[1] > x.shape[2]:
        x = x.mT
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x
