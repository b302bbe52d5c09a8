"""Tree kernels as the attention of a transformers model, for our own forwards only.

An attention function is registered once under a name. For the time of a forward the model's
configuration names it, and everything that it needs travels as a keyword argument of the forward,
which models pass on to it. No mask is built. A forward of another caller that runs at the same
time carries no such argument and gets the model's usual sdpa attention and mask.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from attrs import define
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from draftwood.core.errors import UnsupportedTarget
from draftwood.core.kernels.protocol import Kernels
from draftwood.core.kernels.tree_mask import TreeMask

NAME = "draftwood"
KEYWORD = "tree_attention"
# What an attention function would have to add to scores or sums, by transformers' names.
_FOREIGN = ("s_aux", "sinks", "position_bias", "attention_bias", "head_mask")

_inside: ContextVar[bool] = ContextVar("draftwood_forward", default=False)


@define(eq=False)
class TreeAttention:
    """The keyword argument of one forward.

    Attributes:
        mask: what each row attends to.
        windows: sliding window of each layer in positions, None for full attention.
        layers: number of layers that have attended by the kernels so far.
    """

    kernels: Kernels
    mask: TreeMask
    windows: Sequence[int | None]
    layers: int = 0

    def attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, options: Any
    ) -> Tensor:
        """(1, heads, n, D) queries and the layer's whole buffers -> (1, n, heads, D)."""
        for name in _FOREIGN:
            if options.get(name) is not None:
                raise UnsupportedTarget(
                    f"{type(module).__name__} attends with {name}, which these kernels do not "
                    "have; use runtime.kernels: torch"
                )
        scaling = options.get("scaling")
        if query.device != self.mask.context.device:  # layers of one model may lie on several
            self.mask = self.mask.to(query.device)
        out = self.kernels.attend(
            query[0],
            key[0],
            value[0],
            self.mask,
            scaling=query.shape[-1] ** -0.5 if scaling is None else scaling,
            window=self.windows[module.layer_idx],
            softcap=options.get("softcap"),
        )
        self.layers += 1
        return out[None]

    def check(self, layers: int, name: str) -> None:
        """Raise UnsupportedTarget unless `layers` layers have attended by these kernels."""
        if self.layers != layers:
            raise UnsupportedTarget(
                f"{name} attends in {self.layers} of its {layers} layers through transformers' "
                "AttentionInterface, so kernels cannot serve it; use runtime.kernels: torch"
            )


@contextmanager
def running(config: Any) -> Iterator[None]:
    """Let a model of this configuration attend by our function inside, and its own after."""
    before = config._attn_implementation
    token = _inside.set(True)
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = before
        _inside.reset(token)


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any
) -> tuple[Tensor, None]:
    work: TreeAttention | None = options.pop(KEYWORD, None)
    if work is not None:
        return work.attend(module, query, key, value, options), None
    if _inside.get():
        raise UnsupportedTarget(
            f"the model keeps the keyword arguments of its forward from {type(module).__name__}, "
            "so kernels cannot receive the tree; use runtime.kernels: torch"
        )
    return sdpa_attention_forward(module, query, key, value, attention_mask, **options)


def _mask(*args: Any, **options: Any) -> Any:
    return None if _inside.get() else sdpa_mask(*args, **options)


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, _mask)
