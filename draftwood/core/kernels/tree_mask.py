"""Which keys a forward's rows see, for kernels that need no mask in memory."""

import numpy as np
import torch
from attrs import evolve, frozen
from torch import Tensor

WORD = 32
"""Nodes in one word of `TreeMask.ancestors`."""


@frozen(eq=False)
class TreeMask:
    """What the rows of a forward see: all of the context, and of the nodes behind it their own
    ancestors and themselves. n rows of m nodes take m + n * ceil(m / 32) + 1 integers, whatever
    the context; a dense mask takes n * (context + m) numbers.

    The rows are the last n of the m nodes, whose K/V lies behind the context's in the order of the
    nodes. context: () int32 on the device, committed rows. longest: on the host, no fewer than
    `context` will be when a kernel reads it; sizes its launch. first: m - n, the first row's node.
    A chain has neither depths nor ancestors: node i is i positions behind the context and sees the
    nodes up to itself. A tree has depths, (m,) integers, and ancestors, (n, ceil(m / 32)) int32:
    bit j % 32 of word j // 32 is whether node j is the row's own or one of its ancestors; it is
    never a later one. Both on the device.
    A block whose rows see each other either way is a tree whose bits say so, and not causal.
    """

    context: Tensor
    longest: int
    first: int = 0
    depths: Tensor | None = None
    ancestors: Tensor | None = None
    causal: bool = True

    def to(self, device: torch.device) -> "TreeMask":
        """The same on another device."""
        depths, ancestors = self.depths, self.ancestors
        return evolve(
            self,
            context=self.context.to(device),
            depths=None if depths is None else depths.to(device),
            ancestors=None if ancestors is None else ancestors.to(device),
        )


def ancestor_words(visible: Tensor) -> "np.ndarray[tuple[int, int], np.dtype[np.int32]]":
    """(n, m) bool on the host -> (n, ceil(m / 32)) int32, as in `TreeMask.ancestors`."""
    rows, nodes = visible.shape
    padded = np.zeros((rows, -(-nodes // WORD) * WORD), dtype=bool)
    padded[:, :nodes] = visible.numpy()
    return np.packbits(padded, axis=1, bitorder="little").view("<i4")
