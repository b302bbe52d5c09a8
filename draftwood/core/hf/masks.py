"""Attention masks of trees: 4-D, additive, always explicit where several queries meet a context.

Additive masks mean the same to `eager`, which adds whatever it is given, and to `sdpa`, which
would read a boolean one differently; and sdpa without a mask aligns several queries to the *first*
keys, so a missing one is silently wrong. Windows count positions, not columns: a tree's node of
depth d stands at context + d whatever its place in the tree.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from draftwood.core.hf.cache import window_start

ALIGNED = 16  # columns; CUDA's kernels copy masks whose rows do not start on such a boundary


def additive(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """(rows, columns) bool of what must not be seen -> (1, 1, rows, columns): 0 or the lowest
    finite number. Finite, because a block of a row that holds nothing else gives NaN under -inf.
    """
    rows, columns = hidden.shape
    padded = -(-columns // ALIGNED) * ALIGNED
    mask = torch.zeros(rows, padded, dtype=dtype, device=hidden.device)[:, :columns]
    return mask.masked_fill_(hidden, torch.finfo(dtype).min)[None, None]


def full_mask(visible: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    """(1, 1, n, length + m): all of the context, and of the nodes each one's own ancestors.

    visible: (n, m) bool, [i, j] is whether node j is node i or one of its ancestors.
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
    """(1, 1, n, columns) for the columns that a sliding layer's view holds: those from
    `window_start` on. A node sees its ancestors and the context that are fewer than `window`
    positions before it. depths: (n,) int64, on the device of `visible`. behind: (m,), of the
    nodes that are the columns, where the rows are only some of them.
    """
    start = window_start(length, window)
    context = torch.arange(start - length, 0, device=depths.device)
    columns = torch.cat([context, depths if behind is None else behind])
    near = depths[:, None] - columns[None, :] < window
    near[:, length - start :] &= visible
    return additive(~near, dtype)


class Masks:
    """Builds what a model wants as `attention_mask` for nodes behind a context.

    windows: sliding window per kind of layer, None for full attention; the kinds are the names
    in `config.layer_types`. by_kind: whether the model takes a mapping of masks by kind.
    """

    def __init__(
        self, windows: dict[str, int | None], by_kind: bool, dtype: torch.dtype, device: Any
    ) -> None:
        self.windows, self.by_kind = windows, by_kind
        self.dtype, self.device = dtype, device

    def build(
        self, visible: Tensor | None, depths: Tensor, length: int, behind: Tensor | None = None
    ) -> Any:
        """visible: (n, n) bool; None for a single node, which sees all that its layers' views
        hold and needs no mask. depths: (n,) int64 on the host. length: committed rows. behind:
        (m,), depths of all nodes behind these, where n of them are run: visible is then (n, m).
        """
        if visible is None:
            return dict.fromkeys(self.windows) if self.by_kind else None
        visible, deepest = visible.to(self.device), int(depths.max())
        masks: dict[str, Tensor] = {}
        full: Tensor | None = None
        for kind, window in self.windows.items():
            if window is None or length + deepest < window:  # nothing is out of sight yet
                if full is None:
                    full = full_mask(visible, length, self.dtype)
                masks[kind] = full
            else:
                there = depths.to(self.device)
                columns = None if behind is None else behind.to(self.device)
                masks[kind] = sliding_mask(visible, there, length, window, self.dtype, columns)
        return masks if self.by_kind else next(iter(masks.values()))


def chain(rows: int) -> tuple[Tensor, Tensor]:
    """visible and depths of `rows` nodes in a row: what a prompt is."""
    return torch.ones(rows, rows, dtype=torch.bool).tril(), torch.arange(rows)


def layer_kinds(config: Any) -> Sequence[str]:
    """The kind of each layer, as transformers itself infers it where a config does not say."""
    kinds = getattr(config, "layer_types", None)
    if kinds is None and "local" in (older := getattr(config, "attention_layers", ())):
        return list(older)  # GPT-Neo: windows by place in the cache, whatever mask it is given
    if kinds is None:
        sliding = getattr(config, "sliding_window", None) is not None
        chunked = getattr(config, "attention_chunk_size", None) is not None
        kind = "sliding_attention" if sliding else "full_attention"
        kinds = ["chunked_attention" if chunked else kind] * config.num_hidden_layers
    return list(kinds)


def kind_windows(config: Any) -> dict[str, int | None]:
    """Sliding window of each kind of layer that the model has."""
    return {
        kind: config.sliding_window if kind == "sliding_attention" else None
        for kind in dict.fromkeys(layer_kinds(config))
    }
