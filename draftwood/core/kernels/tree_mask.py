"""The keys that each row of a forward pass sees, without a dense mask."""

import numpy as np
import torch
from attrs import evolve, frozen
from torch import Tensor

WORD = 32
"""Nodes per word of `TreeMask.ancestors`."""


@frozen(eq=False)
class TreeMask:
    """What the rows of a forward pass see: the context, their ancestors and themselves.

    The rows are the last n of m nodes. The keys of the nodes lie behind those of the context, in
    the order of the nodes. The mask has m + n * ceil(m / 32) + 1 integers, whatever the context; a
    dense mask has n * (context + m).

    Attributes:
        context: () int32 on the device, the number of committed rows.
        longest: At least `context`, on the host; kernels choose the size of a launch by it.
        first: m - n, the node of the first row.
        depths: (m,) integers on the device; None for a chain, whose node i has depth i.
        ancestors: (n, ceil(m / 32)) int32 on the device: bit j % 32 of word j // 32 says whether
            the row sees node j. None for a chain, whose node i sees the nodes up to itself.
        causal: Whether no row sees a later node. False for a block whose rows see each other.
    """

    context: Tensor
    longest: int
    first: int = 0
    depths: Tensor | None = None
    ancestors: Tensor | None = None
    causal: bool = True

    def to(self, device: torch.device) -> "TreeMask":
        """The same mask on another device."""
        depths, ancestors = self.depths, self.ancestors
        return evolve(
            self,
            context=self.context.to(device),
            depths=None if depths is None else depths.to(device),
            ancestors=None if ancestors is None else ancestors.to(device),
        )


def ancestor_words(visible: Tensor) -> "np.ndarray[tuple[int, int], np.dtype[np.int32]]":
    """`TreeMask.ancestors` (n, ceil(m / 32)) from (n, m) bool on the host."""
    rows, nodes = visible.shape
    padded = np.zeros((rows, -(-nodes // WORD) * WORD), dtype=bool)
    padded[:, :nodes] = visible.numpy()
    return np.packbits(padded, axis=1, bitorder="little").view("<i4")
