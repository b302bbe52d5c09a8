"""Decoding many rows in step with a Hugging Face model: cache in place, lean attention."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.cache_utils import Cache, CacheLayerMixin

from draftwood.core.errors import UnsupportedTarget
from draftwood.core.hf.versions import cache_keyword, text_config

NAME = "draftwood_grouped"


class _Layer(CacheLayerMixin):
    """Keys and values (rows, heads, capacity, dim) of one layer, allocated at the first update."""

    is_compileable = False
    is_sliding = False

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity, self.length = capacity, 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.keys, self.values = (
            x.new_empty((*x.shape[:2], self.capacity, x.shape[3]))
            for x in (key_states, value_states)
        )
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self.length + key_states.shape[2]
        self.keys[:, :, self.length : end] = key_states
        self.values[:, :, self.length : end] = value_states
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return self.capacity

    get_max_cache_shape = get_max_length  # its name before 5.24


class BatchCache(Cache):
    """Room for `capacity` tokens of every row. Rows are in step: no padding, no mask."""

    def __init__(self, model: Any, capacity: int) -> None:
        layers = text_config(model).num_hidden_layers
        super().__init__(layers=[_Layer(capacity) for _ in range(layers)])
        self._keyword = cache_keyword(model)

    def argument(self) -> dict[str, Any]:
        """As an argument of the model's forward, whose keyword depends on the release."""
        return {self._keyword: self, "use_cache": True}


@contextmanager
def grouped_attention(model: nn.Module) -> Iterator[None]:
    """Inside, the model attends with `grouped`; its own implementation is restored after."""
    AttentionInterface.register(NAME, grouped)
    config: Any = model.config
    before = config._attn_implementation
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = before


def grouped(
    module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Causal attention of rows in step: q (rows, heads, m, dim), the last m of k's n positions.

    One new position sees everything cached, so it needs no mask, and its heads can lie side by
    side as rows of their group's key head: K and V are never repeated. Sliding windows are kept.
    Raises UnsupportedTarget for score transformations (soft caps, sinks).
    """
    if any(options.get(name) is not None for name in ("softcap", "s_aux")):
        raise UnsupportedTarget("sampling does not support attention with soft caps or sinks")
    rows, heads, m, dim = q.shape
    n, window, scale = k.shape[2], options.get("sliding_window"), options.get("scaling")
    if m == 1:
        if window is not None:
            k, v = k[:, :, -window:], v[:, :, -window:]
        q = q.reshape(rows, k.shape[1], -1, dim)
        out = F.scaled_dot_product_attention(q, k, v, scale=scale)
        return out.reshape(rows, 1, heads, -1), None
    if window is not None and window < n:
        query, key = torch.arange(n - m, n)[:, None], torch.arange(n)
        seen = ((key <= query) & (query - key < window)).to(q.device)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale, enable_gqa=True)
    elif m == n:
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
    else:
        raise UnsupportedTarget("rows in step are fed their prompts at once, then token by token")
    return out.transpose(1, 2), None
