"""From a tree and its scores to a verdict: which kernels run, and what they are given.

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
from draftwood.plugins.verifiers.triton.judge.filters import filters_kernel
from draftwood.plugins.verifiers.triton.judge.race import race_kernel
from draftwood.plugins.verifiers.triton.judge.residual import (
    accepted_walk_kernel,
    bonus_kernel,
    bonus_race_kernel,
    residual_kernel,
)
from draftwood.plugins.verifiers.triton.judge.rows import peaks_kernel
from draftwood.plugins.verifiers.triton.judge.walk import walk_kernel

Rule = Literal["match", "ratio", "multi_round"]


@frozen
class Blocks:
    """How a vocabulary is cut up, in tokens; powers of two.

    chunk: what one program of a row looks at, where each chunk of each row is a program; tile: of
    which at a time. wide: at a time, where one program works through a whole row; sifted: the same
    for the filters.
    """

    chunk: int = 8192
    tile: int = 1024
    wide: int = 1024
    sifted: int = 4096

    def within(self, vocab: int) -> "Blocks":
        """The same, no wider than the vocabulary."""
        most = max(16, triton.next_power_of_2(vocab))
        return Blocks(*(min(size, most) for size in astuple(self)))


MARGINS = {torch.float64: 1e-12}
MARGIN = 1e-5
"""Relative distance below which two values of a race, or a uniform and the probability it is
compared with, may change places by rounding: in float32, and in float64."""

SETTINGS: dict[str, dict[str, Any]] = {
    "peaks_kernel": {"num_warps": 4},
    "filters_kernel": {"num_warps": 8},
    "race_kernel": {"num_warps": 4},
    "walk_kernel": {"num_warps": 4},
    "residual_kernel": {"num_warps": 8},
    "accepted_walk_kernel": {"num_warps": 4},
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
class Columns:
    """A tree on the judge's device: (N+1,) int64 each."""

    tokens: Tensor
    parents: Tensor
    depths: Tensor


@frozen(eq=False)
class Judging:
    """One round's work: allocate, launch, and return the ruling still on the device.

    scores: (N+1, V) on the device, processors applied. tree: on the device or the host; drawn ones
    carry q. draws: the verifier's stream. position: of the token after node 0.
    """

    scores: Tensor
    sampling: Sampling
    tree: TokenTree
    draws: Seeded
    position: int
    blocks: Blocks = field(factory=Blocks)

    def ruling(self, rule: Rule) -> Tensor:
        """(4 + N+1,) int64, as `judge.walk` says."""
        return self._match() if rule == "match" else self._residual()

    def _match(self) -> Tensor:
        greedy = self.sampling.greedy
        keys = () if greedy else [self.draws.key(self.position + d) for d in range(self.size)]
        given, columns = self._send(keys)
        peaks, places = self._peaks()
        if greedy:
            bounds, (bests, seconds, winners) = given, (peaks, peaks, places)
        else:
            bounds = self._filters(peaks, given)[0] if self._filtered else given
            bests, seconds, winners = self._race(peaks, given, columns, bounds)
        ruling = self._new((4 + self.size,), torch.int64)
        self._launch(
            walk_kernel, (1,),
            columns.tokens, columns.parents, given, peaks, bounds, bests, seconds, winners,
            ruling, self.size, self.splits,
            GREEDY=greedy, FILTERED=not greedy and self._filtered,
            DOUBLE=self._double, NODES=triton.next_power_of_2(self.size),
        )  # fmt: skip
        return ruling

    def _race(
        self, peaks: Tensor, given: Tensor, columns: Columns, bounds: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Of each chunk of each row the best value, the second best, and the best one's token."""
        bests, seconds = (self._new(peaks.shape, self._real) for _ in range(2))
        winners = self._new(peaks.shape, torch.int64)
        self._launch(
            race_kernel, (self.size, self.splits),
            self.scores, self.scores.stride(0), peaks, given, columns.depths, bounds,
            bests, seconds, winners, self.vocab, self.splits,
            TEMPERED=self._tempered, FILTERED=self._filtered,
            CHUNK=self._cut.chunk, TILE=self._cut.tile, SPAN=self._span, DOUBLE=self._double,
        )  # fmt: skip
        return bests, seconds, winners

    def _residual(self) -> Tensor:
        greedy, tree = self.sampling.greedy, self.tree
        given, columns = self._send([*self._uniforms(), *self._bonus_keys()])
        peaks, places = self._peaks()
        if greedy:
            bounds = torch.zeros(self.size, 3, dtype=torch.int64, device=self.scores.device)
            masses = peaks
        else:
            bounds, masses = self._filters(peaks, given)
        left = self._new((self.size, self.vocab), self._real)
        shares = self._new((self.size, 2), torch.float64)
        flags = self._new((self.size,), torch.int64)
        q = self.scores if tree.q is None else tree.q.to(self.scores.device)
        modes = {"TEMPERED": self._tempered, "GREEDY": greedy, "DOUBLE": self._double}
        self._launch(
            residual_kernel, (self.size,),
            self.scores, self.scores.stride(0), peaks, places, given, columns.tokens,
            columns.parents, q, q.stride(0), bounds, masses, left, shares, flags,
            self.size, self.vocab, self.splits, **modes, TILE=self._cut.wide, SPAN=self._span,
        )  # fmt: skip
        ruling = self._new((4 + self.size,), torch.int64)
        self._launch(
            accepted_walk_kernel, (1,),
            columns.parents, peaks, flags, bounds, ruling, self.size, self.splits,
            DOUBLE=self._double, NODES=triton.next_power_of_2(self.size),
        )  # fmt: skip
        values = self._new((4, self.splits), self._real)
        winners = self._new((self.splits,), torch.int64)
        self._launch(
            bonus_race_kernel, (self.splits,),
            self.scores, self.scores.stride(0), peaks, places, given, bounds, masses, left,
            shares, ruling, values, winners, self.size, self.vocab, self.splits,
            **modes, CHUNK=self._cut.chunk, TILE=self._cut.tile, SPAN=self._span,
        )  # fmt: skip
        self._launch(
            bonus_kernel, (1,), values, winners, ruling, self.splits,
            GREEDY=greedy, SPAN=self._span,
        )  # fmt: skip
        return ruling

    def _peaks(self) -> tuple[Tensor, Tensor]:
        peaks = self._new((self.size, self.splits), self._real)
        places = self._new((self.size, self.splits), torch.int64)
        self._launch(
            peaks_kernel, (self.size, self.splits),
            self.scores, self.scores.stride(0), peaks, places, self.vocab, self.splits,
            CHUNK=self._cut.chunk, TILE=self._cut.tile, DOUBLE=self._double,
        )  # fmt: skip
        return peaks, places

    def _filters(self, peaks: Tensor, given: Tensor) -> tuple[Tensor, Tensor]:
        bounds = self._new((self.size, 3), torch.int64)
        masses = self._new((self.size,), self._real)
        by_count, by_mass, by_floor = self._cuts
        self._launch(
            filters_kernel, (self.size,),
            self.scores, self.scores.stride(0), peaks, given, bounds, masses,
            self.vocab, self.splits, TEMPERED=self._tempered,
            BY_COUNT=by_count, BY_MASS=by_mass, BY_FLOOR=by_floor,
            DOUBLE=self._double, TILE=self._cut.sifted, SPAN=self._span,
        )  # fmt: skip
        return bounds, masses

    def _uniforms(self) -> list[int]:
        """For each node the bits of the uniform that decides about it: the draw of its parent's
        position with its own number among its siblings."""
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

    def _send(self, draws: Sequence[int]) -> tuple[Tensor, Columns]:
        """What the kernels are given, and the tree, in one copy to the device."""
        chosen, tree, device = self.sampling, self.tree, self.scores.device
        cooling = 1.0 if chosen.greedy else 1.0 / chosen.temperature
        floats = (cooling, chosen.top_p or 1.0, chosen.min_p or 0.0)
        write = _bits if self._double else _narrow_bits
        header = [*map(write, (*floats, margin(self.scores.dtype))), chosen.top_k or 0]
        words = [*header, *map(_signed, draws)]
        if tree.tokens.device == device and not devices.reads_without_sync(device):
            return (
                torch.tensor(words).to(device, non_blocking=True),
                Columns(tree.tokens, tree.parents, tree.depths),
            )
        n, lists = self.size, (tree.token_list, tree.parent_list, tree.depth_list)
        both = torch.tensor([*words, *lists[0], *lists[1], *lists[2]])
        both = both.to(device, non_blocking=True)
        given, *columns = both.split([len(words), n, n, n])
        return given, Columns(*columns)

    @property
    def size(self) -> int:
        return len(self.tree)

    @property
    def vocab(self) -> int:
        return self.scores.shape[-1]

    @property
    def splits(self) -> int:
        return -(-self.vocab // self._cut.chunk)

    @property
    def _cut(self) -> Blocks:
        return self.blocks.within(self.vocab)

    @property
    def _double(self) -> bool:
        return self.scores.dtype is torch.float64

    @property
    def _real(self) -> torch.dtype:
        return torch.float64 if self._double else torch.float32

    @property
    def _span(self) -> int:
        return triton.next_power_of_2(self.splits)

    @property
    def _tempered(self) -> bool:
        return self.sampling.temperature != 1.0

    @property
    def _cuts(self) -> tuple[bool, bool, bool]:
        """Whether top-k, top-p and min-p cut anything."""
        chosen = self.sampling
        return (
            chosen.top_k is not None and chosen.top_k < self.vocab,
            chosen.top_p is not None and chosen.top_p < 1.0,
            chosen.min_p is not None and chosen.min_p > 0.0,
        )

    @property
    def _filtered(self) -> bool:
        return any(self._cuts)

    def _new(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self.scores.device)

    def _launch(self, kernel: Any, grid: tuple[int, ...], *tensors: Any, **constants: Any) -> None:
        name = kernel.__name__
        LAUNCHES.add(name.removesuffix("_kernel"))
        kernel[grid](*tensors, **constants, **options(name))


def _bits(value: float) -> int:
    """The bits of a float64 as a signed integer."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def _narrow_bits(value: float) -> int:
    """The bits of a float32 as an integer."""
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def _signed(value: int) -> int:
    """The same 64 bits as a signed integer."""
    return value - 2**64 if value >= 2**63 else value
