"""Attention masks of trees: 4-D, additive, always explicit where several queries have a context.

An additive mask means the same to `eager`, which adds whatever it is given, and to `sdpa`, which
reads a boolean one differently. Without a mask sdpa aligns several queries to the *first* keys,
so a missing one is silently wrong. Windows count positions, not columns: a node of depth d is at
position context + d, whatever its row.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from draftwood.core.hf.cache import window_start

ALIGNED = 16
"""Columns; CUDA's kernels copy a mask whose rows do not start at a multiple of this."""


def additive(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """Make an additive mask: (rows, columns) bool, True is hidden -> (1, 1, rows, columns).

    Hidden entries are the lowest finite number, not -inf: softmax over a block of -inf is NaN.
    """
    rows, columns = hidden.shape
    padded = -(-columns // ALIGNED) * ALIGNED
    mask = torch.zeros(rows, padded, dtype=dtype, device=hidden.device)[:, :columns]
    return mask.masked_fill_(hidden, torch.finfo(dtype).min)[None, None]


def full_mask(visible: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    """The mask of full attention: all of the context, and each node's own ancestors.

    Args:
        visible: (n, m) bool, [i, j] is whether node j is node i or one of its ancestors.
        length: number of committed rows.

    Returns:
        (1, 1, n, length + m).
    """
    n, m = visible.shape
    columns = length + m
    padded = -(-columns // ALIGNED) * ALIGNED
    mask = torch.zeros(n, padded, dtype=dtype, device=visible.device)[:, :columns]
    mask[:, length:].masked_fill_(~visible, torch.finfo(dtype).min)
    return mask[None, None]


def sliding_mask(
    visible: Tensor,
    depths: Tensor,
    length: int,
    window: int,
    dtype: torch.dtype,
    behind: Tensor | None = None,
) -> Tensor:
    """The mask of sliding attention, for the columns from `window_start` on.

    A node attends to its ancestors and to the context that are fewer than `window` positions
    before it.

    Args:
        visible: (n, m) bool, as for `full_mask`.
        depths: (n,) int64 depths of the rows, on the device of `visible`.
        behind: (m,) depths of the nodes that are the columns, where the rows are only some of
            them.

    Returns:
        (1, 1, n, columns).
    """
    start = window_start(length, window)
    context = torch.arange(start - length, 0, device=depths.device)
    columns = torch.cat([context, depths if behind is None else behind])
    inside = depths[:, None] - columns[None, :] < window
    inside[:, length - start :] &= visible
    return additive(~inside, dtype)


class Masks:
    """Builds what a model takes as `attention_mask` for nodes behind a context.

    Args:
        windows: sliding window by kind of layer, None for full attention; kinds are the names in
            `config.layer_types`.
        by_kind: whether the model takes a mapping of masks by kind.
    """

    def __init__(
        self, windows: dict[str, int | None], by_kind: bool, dtype: torch.dtype, device: Any
    ) -> None:
        self.windows, self.by_kind = windows, by_kind
        self.dtype, self.device = dtype, device

    def build(
        self, visible: Tensor | None, depths: Tensor, length: int, behind: Tensor | None = None
    ) -> Any:
        """Build the mask, or the masks by kind, of one forward.

        Args:
            visible: (n, m) bool; None for a single node, which attends to every row of its
                layers' views and needs no mask.
            depths: (n,) int64 on the host, of the rows that run.
            length: number of committed rows.
            behind: (m,) depths of all uncommitted nodes, where only n of them run.
        """
        if visible is None:
            return dict.fromkeys(self.windows) if self.by_kind else None
        visible, deepest = visible.to(self.device), int(depths.max())
        masks: dict[str, Tensor] = {}
        full: Tensor | None = None
        for kind, window in self.windows.items():
            if window is None or length + deepest < window:  # the window covers everything
                if full is None:
                    full = full_mask(visible, length, self.dtype)
                masks[kind] = full
            else:
                columns = None if behind is None else behind.to(self.device)
                masks[kind] = sliding_mask(
                    visible, depths.to(self.device), length, window, self.dtype, columns
                )
        return masks if self.by_kind else next(iter(masks.values()))


def chain(rows: int) -> tuple[Tensor, Tensor]:
    """`visible` and depths of a chain of `rows` nodes, as a prompt is."""
    return torch.ones(rows, rows, dtype=torch.bool).tril(), torch.arange(rows)


def layer_kinds(config: Any) -> Sequence[str]:
    """The kind of each layer, inferred as transformers does where a config does not say."""
    kinds = getattr(config, "layer_types", None)
    if kinds is None and "local" in (older := getattr(config, "attention_layers", ())):
        return list(older)  # GPT-Neo: its windows count cache rows and ignore masks
    if kinds is None:
        sliding = getattr(config, "sliding_window", None) is not None
        chunked = getattr(config, "attention_chunk_size", None) is not None
        kind = "sliding_attention" if sliding else "full_attention"
        kinds = ["chunked_attention" if chunked else kind] * config.num_hidden_layers
    return list(kinds)


def kind_windows(config: Any) -> dict[str, int | None]:
    """Sliding window of each kind of layer that the model has, None for full attention."""
    return {
        kind: config.sliding_window if kind == "sliding_attention" else None
        for kind in dict.fromkeys(layer_kinds(config))
    }
