"""A Hugging Face causal LM called on tree nodes behind a cached context."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from draftwood.core import devices
from draftwood.core.errors import RequestError
from draftwood.core.hf import attention, parallel
from draftwood.core.hf.cache import ShapeProbe, TreeCache
from draftwood.core.hf.masks import Masks, kind_windows, layer_kinds
from draftwood.core.hf.rope import position_limit
from draftwood.core.hf.rows import Rows
from draftwood.core.hf.supported import refuse_unsupported, refused_if_it_raises
from draftwood.core.hf.taps import Taps
from draftwood.core.hf.versions import accepts, cache_keyword, text_config
from draftwood.core.hf.wrapped import unwrap
from draftwood.core.kernels.protocol import Kernels

Scored = tuple[Tensor, list[Tensor]]
"""(n, V) logits of a forward's rows, and the tapped outputs, (1, n, H) each."""


class TreeScorer:
    """Calls a model with the positions, the mask and the cache that tree nodes need.

    The model is only called, never changed. The first call, of one token, records the shapes of
    its K/V.

    Args:
        model: an `AutoModelForCausalLM` in evaluation mode, or one wrapped by torch.compile or
            PEFT.
        name: what reports call it; None takes the configuration's name.
        vocab_limit: number of tokens that the tokenizer has; logits of ids from there on are
            padding and become -inf. None if all ids are tokens.

    Attributes:
        vocab_size: width V of the logits.
        max_context: largest number of positions, None if the model does not say.
        layout: shape of the K/V of each layer.
        split: whether other processes hold parts of the layers.

    Raises:
        UnsupportedTarget: the model cannot score trees or cannot be rolled back.
    """

    def __init__(
        self, model: Any, *, name: str | None = None, vocab_limit: int | None = None
    ) -> None:
        model = unwrap(model)
        refuse_unsupported(model)
        self.model, self.config = model, text_config(model)
        self.name = name or self.config.name_or_path or type(model).__name__
        self.vocab_limit = vocab_limit
        self.split = parallel.is_split(model)
        self.device: torch.device = model.get_input_embeddings().weight.device
        self.dtype: torch.dtype = model.dtype
        self.layers: int = self.config.num_hidden_layers
        limit = position_limit(self.config)
        self.max_context, self._limit_reason = limit.positions, limit.reason
        self._cache_keyword = cache_keyword(model)
        self._keeps_logits = accepts(model, "logits_to_keep")
        windows = kind_windows(self.config)
        self.masks = Masks(windows, len(windows) > 1, self.dtype, self.device)
        probe = ShapeProbe()
        with torch.inference_mode(), refused_if_it_raises(self.name):
            token = torch.zeros(1, dtype=torch.int64)
            logits = self.call(token, token, probe, None)
        self.vocab_size: int = logits.shape[-1]
        self.layout = probe.layout([windows[kind] for kind in layer_kinds(self.config)])

    @property
    def tokens(self) -> int:
        """Number of ids that are tokens, from 0."""
        return min(self.vocab_size, self.vocab_limit or self.vocab_size)

    @property
    def windows(self) -> list[int | None]:
        """Sliding window of each layer in positions, None for full attention."""
        return [shape.window for shape in self.layout]

    def score(
        self, cache: TreeCache, taps: Taps, rows: Rows, kernels: Kernels | None, last: int = 0
    ) -> Scored:
        """Run one forward of `rows` behind the committed rows of `cache`.

        Args:
            last: return logits of this many last rows only; 0 returns all.
            kernels: run attention; None uses the model's own attention and a dense mask.
        """
        self.check_depths(cache.length, rows.own_depths)
        cache.reserve(len(rows.tokens))
        with taps.recording() as parts:
            if kernels is None:
                logits = self._masked(cache, rows, last)
            else:
                mask = rows.mask(kernels, cache.length, self.device)
                work = attention.TreeAttention(kernels, mask, self.windows)
                positions = rows.own_depths + cache.length
                logits = self.call_with(work, rows.tokens, positions, cache, last)
        self.forbid_padding(logits)
        return logits, parts

    def _masked(self, cache: TreeCache, rows: Rows, last: int) -> Tensor:
        all_depths = None if rows.seen is None else rows.depths
        mask = self.masks.build(rows.visible, rows.own_depths, cache.length, all_depths)
        return self.call(rows.tokens, rows.own_depths + cache.length, cache, mask, last)

    def call_with(
        self,
        work: attention.TreeAttention,
        tokens: Tensor,
        positions: Tensor,
        cache: TreeCache,
        last: int = 0,
    ) -> Tensor:
        """The model's call in which every layer attends by `work`'s kernels.

        Raises:
            UnsupportedTarget: a layer did not attend through transformers' AttentionInterface.
        """
        with attention.running(self.config):
            options = {attention.KEYWORD: work}
            logits = self.call(tokens, positions, cache, None, last, options)
        work.check(self.layers, self.name)
        return logits

    def call(
        self,
        tokens: Tensor,
        positions: Tensor,
        cache: Any,
        mask: Any,
        last: int = 0,
        options: Mapping[str, Any] | None = None,
    ) -> Tensor:
        """The model's own call: (n,) tokens at (n,) positions -> logits of the `last` rows, or
        (n, V) for 0."""
        options = {self._cache_keyword: cache, **(options or {})}
        if last and self._keeps_logits:
            options["logits_to_keep"] = last
        # Not `self.model(...)`: `model.compile()` would compile anew for every number of rows.
        output = self.model._call_impl(
            input_ids=tokens[None].to(self.device),
            position_ids=positions[None].to(self.device),
            attention_mask=mask,
            use_cache=True,
            **options,
        )
        return output.logits[0, -last:] if last else output.logits[0]

    def uncached(self, ids: Sequence[int]) -> Tensor:
        """(len(ids), V) logits of a text by the model's own masks, without a cache."""
        tokens = torch.tensor([ids], device=self.device)
        positions = torch.arange(len(ids), device=self.device)[None]
        with torch.inference_mode():
            output = self.model._call_impl(
                input_ids=tokens, position_ids=positions, use_cache=False
            )
        return output.logits[0]

    def forbid_padding(self, logits: Tensor) -> None:
        """Set the logits of ids without a token to -inf, in place."""
        if self.vocab_limit is not None:
            logits[:, self.vocab_limit :] = -torch.inf

    def check_depths(self, length: int, depths: Tensor) -> None:
        """Raise RequestError if a node behind `length` rows lies past the last position.

        Depths on a GPU are not read: the engine limited the tree's depth before it was grown.
        """
        if devices.reads_without_sync(depths.device):
            self.check_room(length + int(depths.max()))

    def check_room(self, position: int) -> None:
        """Raise RequestError if `position` is past the last one that the model has."""
        if self.max_context is not None and position >= self.max_context:
            because = f": {self._limit_reason}" if self._limit_reason else ""
            raise RequestError(
                f"position {position} is past the {self.max_context} that {self.name} can "
                f"hold{because}"
            )
