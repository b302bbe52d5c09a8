"""Launches the kernels that decide about a tree.

The number of launches depends on the rule and the filters alone: 2 for greedy, 3 for `match`, 4
with filters; 6 for `ratio` and `multi_round` (5 greedy).
"""

import struct
from collections.abc import Sequence
from typing import Any, Literal

import torch
import triton
from attrs import astuple, field, frozen
from torch import Tensor

from draftwood.core import devices
from draftwood.core.kernels.launches import LAUNCHES
from draftwood.core.options import Sampling
from draftwood.core.randomness import Seeded
from draftwood.core.tree import TokenTree
from draftwood.plugins.verifiers.triton.judge.buffers import (
    FilterBounds,
    JudgeBuffers,
    Matrix,
    Mode,
    Race,
    RowMax,
    Shape,
    TreeColumns,
)
from draftwood.plugins.verifiers.triton.judge.filters import filters_kernel
from draftwood.plugins.verifiers.triton.judge.race import race_kernel
from draftwood.plugins.verifiers.triton.judge.residual import (
    bonus_kernel,
    bonus_race_kernel,
    residual_kernel,
)
from draftwood.plugins.verifiers.triton.judge.rows import row_max_kernel
from draftwood.plugins.verifiers.triton.judge.walk import match_walk_kernel, residual_walk_kernel

Rule = Literal["match", "ratio", "multi_round"]


@frozen
class Blocks:
    """How kernels divide a vocabulary, in tokens; powers of two.

    Attributes:
        chunk: Tokens of one program where several share a row.
        tile: Tokens that such a program processes at a time.
        wide: Tokens at a time where one program processes a whole row.
        filter_tile: The same in the filters.
    """

    chunk: int = 8192
    tile: int = 1024
    wide: int = 1024
    filter_tile: int = 4096

    def within(self, vocab: int) -> "Blocks":
        """The same, no wider than the vocabulary."""
        most = max(16, triton.next_power_of_2(vocab))
        return Blocks(*(min(size, most) for size in astuple(self)))


MARGINS = {torch.float64: 1e-12}
MARGIN = 1e-5
"""Relative distance below which rounding can swap two values of a race, or a uniform and the
probability that it is compared with."""

SETTINGS: dict[str, dict[str, Any]] = {
    "row_max_kernel": {"num_warps": 4},
    "filters_kernel": {"num_warps": 8},
    "race_kernel": {"num_warps": 4},
    "match_walk_kernel": {"num_warps": 4},
    "residual_kernel": {"num_warps": 8},
    "residual_walk_kernel": {"num_warps": 4},
    "bonus_race_kernel": {"num_warps": 4},
    "bonus_kernel": {"num_warps": 1},
}
"""How each kernel is compiled. No fused multiply-add anywhere: it would round a product that the
reference rounds twice."""


def options(kernel: str) -> dict[str, Any]:
    """Compile options of a kernel, by name."""
    return {**SETTINGS[kernel], "enable_fp_fusion": False}


def margin(dtype: torch.dtype) -> float:
    """The margin of decisions about logits of this dtype."""
    return MARGINS.get(dtype, MARGIN)


@frozen(eq=False)
class JudgeLaunch:
    """The launches of one round.

    Attributes:
        scores: (N+1, V) logits on the device, after the logits processors.
        sampling: The target's.
        tree: On the device or the host; with q unless the rule is `match`.
        draws: The verifier's stream.
        position: Of the token after node 0.
        blocks: How to divide the vocabulary.
        buffer_type: Allocates the buffers.
    """

    scores: Tensor
    sampling: Sampling
    tree: TokenTree
    draws: Seeded
    position: int
    blocks: Blocks = field(factory=Blocks)
    buffer_type: type[JudgeBuffers] = JudgeBuffers

    def decide(self, rule: Rule) -> Tensor:
        """Launch a rule's kernels.

        Returns:
            (4 + N+1,) int64 on the device, in the layout of `judge.buffers`.
        """
        return self._match() if rule == "match" else self._residual()

    def _match(self) -> Tensor:
        greedy = self.sampling.greedy
        keys = () if greedy else [self.draws.key(self.position + d) for d in range(self.size)]
        inputs, tree = self._send(keys)
        row_max = self._row_max()
        filters = FilterBounds(inputs, row_max.maxima)  # not read without filters
        if self._mode(1).filtered:
            filters = self._filters(row_max, inputs)
        if greedy:
            race = Race(row_max.maxima, row_max.maxima, row_max.tokens)
        else:
            race = self._race(row_max, inputs, tree, filters)
        decision = self._buffers.decision()
        self._launch(
            match_walk_kernel, (1,),
            tree, inputs, row_max.maxima, filters.bounds, race, decision, self.shape,
            MODE=self._mode(self._cut.tile), NODES=self._nodes,
        )  # fmt: skip
        return decision

    def _race(
        self, row_max: RowMax, inputs: Tensor, tree: TreeColumns, filters: FilterBounds
    ) -> Race:
        race = self._buffers.race()
        self._launch(
            race_kernel, (self.size, self.shape.splits),
            self._logits, row_max, inputs, tree.depths, filters, race, self.shape,
            MODE=self._mode(self._cut.tile),
        )  # fmt: skip
        return race

    def _residual(self) -> Tensor:
        buffers, shape, device = self._buffers, self.shape, self.scores.device
        inputs, tree = self._send([*self._uniforms(), *self._bonus_keys()])
        row_max = self._row_max()
        if self.sampling.greedy:
            bounds = torch.zeros(self.size, 3, dtype=torch.int64, device=device)
            filters = FilterBounds(bounds, row_max.maxima)
        else:
            filters = self._filters(row_max, inputs)
        residuals, decision, race = buffers.residuals(), buffers.decision(), buffers.bonus_race()
        q = self.scores if self.tree.q is None else self.tree.q.to(device)
        mode = self._mode(self._cut.tile)
        self._launch(
            residual_kernel, (self.size,),
            self._logits, row_max, inputs, tree, Matrix(q, q.stride(0)), filters, residuals, shape,
            MODE=self._mode(self._cut.wide),
        )  # fmt: skip
        self._launch(
            residual_walk_kernel, (1,),
            tree.parents, row_max.maxima, residuals.flags, filters.bounds, decision, shape,
            MODE=mode, NODES=self._nodes,
        )  # fmt: skip
        self._launch(
            bonus_race_kernel, (shape.splits,),
            self._logits, row_max, inputs, filters, residuals, decision, race, shape, MODE=mode,
        )  # fmt: skip
        self._launch(bonus_kernel, (1,), race, decision, shape, MODE=mode)
        return decision

    def _row_max(self) -> RowMax:
        row_max = self._buffers.row_max()
        grid = (self.size, self.shape.splits)
        mode = self._mode(self._cut.tile)
        self._launch(row_max_kernel, grid, self._logits, row_max, self.shape, MODE=mode)
        return row_max

    def _filters(self, row_max: RowMax, inputs: Tensor) -> FilterBounds:
        filters = self._buffers.filter_bounds()
        self._launch(
            filters_kernel, (self.size,), self._logits, row_max, inputs, filters, self.shape,
            MODE=self._mode(self._cut.filter_tile),
        )  # fmt: skip
        return filters

    def _uniforms(self) -> list[int]:
        """For each node the bits of its uniform, from its parent's position and its own number
        among its siblings."""
        uniforms = [0] * self.size
        depths = self.tree.depth_list
        for parent, children in enumerate(self.tree.children):
            for number, child in enumerate(children):
                uniform = self.draws.uniform(self.position + depths[parent], number)
                uniforms[child] = _bits(uniform)
        return uniforms

    def _bonus_keys(self) -> list[int]:
        """For each node the key of the draw after all its children were rejected."""
        pairs = zip(self.tree.depth_list, self.tree.children, strict=True)
        return [self.draws.key(self.position + depth, len(below)) for depth, below in pairs]

    def _send(self, draws: Sequence[int]) -> tuple[Tensor, TreeColumns]:
        """The kernels' inputs and the tree, in one copy to the device."""
        chosen, tree, device = self.sampling, self.tree, self.scores.device
        inverse_temperature = 1.0 if chosen.greedy else 1.0 / chosen.temperature
        floats = (inverse_temperature, chosen.top_p or 1.0, chosen.min_p or 0.0)
        write = _bits if self.scores.dtype is torch.float64 else _narrow_bits
        header = [*map(write, (*floats, margin(self.scores.dtype))), chosen.top_k or 0]
        words = [*header, *map(_signed, draws)]
        if tree.tokens.device == device and not devices.reads_without_sync(device):
            return (
                torch.tensor(words).to(device, non_blocking=True),
                TreeColumns(tree.tokens, tree.parents, tree.depths),
            )
        n, lists = self.size, (tree.token_list, tree.parent_list, tree.depth_list)
        both = torch.tensor([*words, *lists[0], *lists[1], *lists[2]])
        both = both.to(device, non_blocking=True)
        inputs, *columns = both.split([len(words), n, n, n])
        return inputs, TreeColumns(*columns)

    @property
    def size(self) -> int:
        return len(self.tree)

    @property
    def shape(self) -> Shape:
        vocab = self.scores.shape[-1]
        return Shape(self.size, vocab, -(-vocab // self._cut.chunk))

    @property
    def _cut(self) -> Blocks:
        return self.blocks.within(self.scores.shape[-1])

    @property
    def _logits(self) -> Matrix:
        return Matrix(self.scores, self.scores.stride(0))

    @property
    def _nodes(self) -> int:
        return triton.next_power_of_2(self.size)

    @property
    def _buffers(self) -> JudgeBuffers:
        real = torch.float64 if self.scores.dtype is torch.float64 else torch.float32
        return self.buffer_type(self.shape, real, self.scores.device)

    def _mode(self, tile: int) -> Mode:
        chosen, vocab = self.sampling, self.scores.shape[-1]
        return Mode(
            chunk=self._cut.chunk,
            tile=tile,
            span=triton.next_power_of_2(self.shape.splits),
            double=self.scores.dtype is torch.float64,
            tempered=chosen.temperature != 1.0,
            greedy=chosen.greedy,
            top_k=chosen.top_k is not None and chosen.top_k < vocab,
            top_p=chosen.top_p is not None and chosen.top_p < 1.0,
            min_p=chosen.min_p is not None and chosen.min_p > 0.0,
        )

    def _launch(self, kernel: Any, grid: tuple[int, ...], *groups: Any, **constants: Any) -> None:
        name = kernel.__name__
        LAUNCHES.add(name.removesuffix("_kernel"))
        kernel[grid](*groups, **constants, **options(name))


def _bits(value: float) -> int:
    """The bits of a float64 as a signed integer."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def _narrow_bits(value: float) -> int:
    """The bits of a float32 as an integer."""
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def _signed(value: int) -> int:
    """The same 64 bits as a signed integer."""
    return value - 2**64 if value >= 2**63 else value
