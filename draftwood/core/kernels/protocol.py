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
        """Soft-max attention of the rows of a forward pass in one layer.

        Args:
            query: (heads, n, D).
            keys: (K/V heads, capacity, D); each K/V head serves heads / K/V heads consecutive query
                heads. Node j of the mask is in row context + j. Rows behind the nodes are not
                initialised.
            values: Like `keys`.
            mask: What each row sees.
            scaling: Factor of the scores.
            window: Number of positions that a row sees, its own included; a position is
                context + depth. None for all.
            softcap: c of the scores c * tanh(s / c); None for the scores s themselves.

        Returns:
            (n, heads, D), contiguous, in the query's dtype.
        """
        ...

    def ancestors(self, parents: Tensor) -> Tensor:
        """`TreeMask.ancestors` of a whole tree, without a synchronisation.

        Args:
            parents: (m,) integers on the device, each before its node and -1 at the anchor.
        """
        ...

    def compact(self, stacks: Sequence[Tensor], length: int, path: Sequence[int]) -> None:
        """Copy rows length + path[i] to rows length + i, in place, without a synchronisation.

        Args:
            stacks: K/V of all layers, each (layers, 1, heads, capacity, dim), contiguous.
            length: Committed rows.
            path: The accepted nodes, increasing, so path[i] >= i.
        """
        ...
