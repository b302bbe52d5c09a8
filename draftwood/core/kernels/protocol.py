"""Kernels for the target's attention and for the compaction of its cache."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from draftwood.core.kernels.tree_mask import TreeMask


class Kernels(Protocol):
    """What a target's sessions run on if they were opened with it.

    An implementation counts its launches in `core.kernels.launches.LAUNCHES`.
    """

    def attend(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: TreeMask,
        *,
        scaling: float,
        window: int | None = None,
        softcap: float | None = None,
    ) -> Tensor:
        """Soft-max attention of a forward's rows in one layer.

        query: (heads, n, D). keys, values: (K/V heads, capacity, D), each K/V head serving
        heads / K/V heads consecutive query heads; node j of the mask lies in row context + j, and
        what lies behind the nodes was never written. window: how many positions a row sees, its
        own included; positions are context + depth. softcap: scores s become c * tanh(s / c).
        Returns (n, heads, D), contiguous, in the query's dtype.
        """
        ...

    def ancestors(self, parents: Tensor) -> Tensor:
        """`TreeMask.ancestors` of a whole tree. parents: (m,) integers on the device, each before
        its node and -1 at the anchor. Waits for nothing."""
        ...

    def compact(self, stacks: Sequence[Tensor], length: int, path: Sequence[int]) -> None:
        """Commit: rows length + path[i] become rows length + i, in place, for every i.

        stacks: K/V of all layers, (layers, 1, heads, capacity, dim) contiguous each. path:
        increasing, so path[i] >= i. Waits for nothing.
        """
        ...
