"""Tree attention of one layer by the kernel, SDPA with a dense mask and flex-attention."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from attrs import asdict, frozen
from clocks import Clock, Timed, place
from draft_trees import rounded, tree_of
from torch import Tensor

from draftwood.core.kernels.tree_mask import TreeMask
from draftwood.core.kernels.triton.attention.ancestors import ancestor_words
from draftwood.core.kernels.triton.attention.launch import attend
from draftwood.core.tree import TokenTree

FLEX_SECONDS = 45.0
"""Flex-attention compiles a kernel per shape; it is skipped if less time is left."""

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 4e-2}


@frozen
class Shape:
    """One layer's attention in one round. flex: whether flex-attention is measured, too."""

    model: str
    heads: int
    kv_heads: int
    dim: int
    nodes: int
    context: int
    flex: bool = False

    @property
    def flops(self) -> float:
        """Operations of the scores and of the sums over all keys."""
        columns = self.context + self.nodes + 1
        return 4.0 * self.heads * self.dim * (self.nodes + 1) * columns

    def moved(self, item: int) -> float:
        """Bytes of keys and values, queries and outputs, each moved once."""
        columns, rows = self.context + self.nodes + 1, self.nodes + 1
        return float(item * self.dim * 2 * (self.kv_heads * columns + self.heads * rows))


QWEN3_8B = ("Qwen3-8B", 32, 8, 128)
SHAPES = (
    Shape(*QWEN3_8B, 64, 8192, flex=True),  # the one that the documents state: first
    Shape(*QWEN3_8B, 16, 8192, flex=True),
    Shape(*QWEN3_8B, 64, 1024, flex=True),
    Shape(*QWEN3_8B, 256, 8192),
    Shape(*QWEN3_8B, 0, 8192),
    Shape(*QWEN3_8B, 64, 32768),
    Shape(*QWEN3_8B, 16, 1024),
    Shape(*QWEN3_8B, 256, 1024),
    Shape("Qwen3-0.6B", 16, 8, 128, 64, 8192),
    Shape("Llama-3.2-1B", 32, 8, 64, 64, 8192),
    Shape("Phi-3-mini", 32, 32, 96, 64, 8192),
    Shape("Gemma-2-2B", 8, 4, 256, 64, 8192),
)
DRY = (Shape("tiny", 4, 2, 16, 6, 40, flex=True), Shape("tiny", 4, 2, 16, 0, 40))


def measure(add: Callable[[dict[str, Any]], None], end: float, dry: bool) -> None:
    """A row per shape: {shape, times by contestant, limits, whether the kernel's output is wrong}.

    Raises RuntimeError if one was: its times mean nothing.
    """
    clock, dtype = Clock(place(dry), end), torch.float32 if dry else torch.bfloat16
    rates = clock.bandwidth(), clock.matmul_rate(dtype)
    wrong = []
    for shape in DRY if dry else SHAPES:
        if clock.left < 0:
            break
        row = _row(shape, clock, dtype, rates)
        add(row)
        if row["wrong"]:
            wrong.append(f"{shape.model}, N {shape.nodes}: {row['wrong']}")
    if wrong:
        raise RuntimeError("; ".join(wrong))


def _row(
    shape: Shape, clock: Clock, dtype: torch.dtype, rates: tuple[float, float]
) -> dict[str, Any]:
    layer = Layer(shape, clock.device, dtype)
    flex = shape.flex and (not clock.on_gpu or clock.left > FLEX_SECONDS)
    contestants = layer.contestants(flex)
    times = clock.device_times(contestants, 30 if clock.on_gpu else 1)
    memory, compute = shape.moved(dtype.itemsize) / rates[0], shape.flops / rates[1]
    return {
        "shape": asdict(shape),
        "dtype": str(dtype).removeprefix("torch."),
        "times": {name: timed.as_dict() for name, timed in times.items()},
        "memory_limit": memory,
        "compute_limit": compute,
        "bandwidth": rates[0],
        "matmul_rate": rates[1],
        "wrong": _wrong(contestants, times, TOLERANCE[dtype]),
        **_compared(times, memory, compute),
    }


def _wrong(
    contestants: dict[str, Callable[[], Tensor]], times: dict[str, Timed], limit: float
) -> str | None:
    """The kernel's error relative to SDPA's largest element, if it is too large."""
    if error := times["tree attention"].error:
        return error
    found, expected = (
        contestants[name]().float() for name in ("tree attention", "sdpa, repeated heads")
    )
    difference = float((found - expected).abs().max() / expected.abs().max())
    return None if difference <= limit else f"differs from SDPA's by {difference:.2g}"


def _compared(times: dict[str, Timed], memory: float, compute: float) -> dict[str, float | None]:
    """The kernel compared with the fastest dense-mask contestant and with the hardware limits."""
    own = times["tree attention"].seconds
    dense = [t.seconds for name, t in times.items() if name.startswith("sdpa") and t.seconds]
    if own is None:
        return {"speedup": None, "of_bandwidth": None, "of_roofline": None}
    return {
        "speedup": min(dense) / own if dense else None,
        "of_bandwidth": memory / own,
        "of_roofline": max(memory, compute) / own,
    }


class Layer:
    """Random K/V of a context and a tree, and the contestants."""

    def __init__(self, shape: Shape, device: torch.device, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        self.shape, self.device, self.dtype = shape, device, dtype
        self.tree = tree_of(shape.nodes, 1000 + shape.nodes)
        self.rows = shape.nodes + 1
        self.columns = shape.context + self.rows
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        capacity = rounded(self.columns)
        self.query = torch.randn(shape.heads, self.rows, shape.dim, **options)
        self.keys, self.values = (
            torch.randn(shape.kv_heads, capacity, shape.dim, **options) for _ in range(2)
        )
        self.scaling = shape.dim**-0.5
        self.mask = tree_mask(self.tree, shape.context, device)
        self._flex: Callable[..., Tensor] | None = None

    def contestants(self, flex: bool) -> dict[str, Callable[[], Tensor]]:
        """Contestants by name; each returns (rows, heads, dim)."""
        dense = self.dense_mask()
        found: dict[str, Callable[[], Tensor]] = {
            "tree attention": self.kernel,
            "sdpa, repeated heads": partial(self.sdpa, dense, repeat=True),
            "sdpa, grouped heads": partial(self.sdpa, dense, repeat=False),
        }
        if flex:
            found["flex-attention"] = self.flex
        return found

    def kernel(self) -> Tensor:
        return attend(self.query, self.keys, self.values, self.mask, scaling=self.scaling)

    def sdpa(self, mask: Tensor, repeat: bool) -> Tensor:
        """repeat: copy keys and values per query head, as transformers does."""
        keys, values = (part[None, :, : self.columns] for part in (self.keys, self.values))
        group = self.shape.heads // self.shape.kv_heads
        if repeat and group > 1:
            keys, values = (part.repeat_interleave(group, 1) for part in (keys, values))
        out = F.scaled_dot_product_attention(
            self.query[None], keys, values, attn_mask=mask, scale=self.scaling,
            enable_gqa=not repeat and group > 1,
        )  # fmt: skip
        return out[0].transpose(0, 1)

    def dense_mask(self) -> Tensor:
        """(1, 1, rows, columns), in memory; made once a round and not timed."""
        mask = torch.zeros(self.rows, rounded(self.columns, 16), dtype=self.dtype)
        hidden = ~self.tree.ancestors()
        mask[:, self.shape.context : self.columns].masked_fill_(hidden, torch.finfo(self.dtype).min)
        return mask.to(self.device)[None, None, :, : self.columns]

    def flex(self) -> Tensor:
        """The first call makes a block mask, once a round and not timed, and compiles."""
        if self._flex is None:
            self._flex = self._compiled_flex()
        out = self._flex(
            self.query[None],
            self.keys[None, :, : self.columns],
            self.values[None, :, : self.columns],
            scale=self.scaling,
            enable_gqa=True,
        )
        return out[0].transpose(0, 1)

    def _compiled_flex(self) -> Callable[..., Tensor]:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        seen, context = self.tree.ancestors().to(self.device), self.shape.context

        def visible(batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
            return (column < context) | seen[row, torch.clamp(column - context, min=0)]

        block = create_block_mask(
            visible, None, None, self.rows, self.columns, device=str(self.device)
        )
        compiled: Any = flex_attention
        if self.device.type == "cuda":
            compiled = torch.compile(flex_attention, dynamic=False)
        return partial(compiled, block_mask=block)


def tree_mask(tree: TokenTree, context: int, device: torch.device) -> TreeMask:
    """The arguments that the target's forward pass gives to the kernel."""
    there = torch.full((), context, dtype=torch.int32, device=device)
    if len(tree) == 1:
        return TreeMask(there, context)
    words = ancestor_words(tree.parents.to(device))
    return TreeMask(there, context, 0, tree.depths.to(device), words)
