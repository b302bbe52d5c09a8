"""The buffers of a judge launch, in the groups in which kernels take them.

No field of a group is named `values` or `type`: Triton's own tuples have those."""

from typing import Any, NamedTuple

import torch
import triton.language as tl
from attrs import frozen
from torch import Tensor

# Words of the inputs: floats as bits of the arithmetic's width, top_k, then keys and uniforms.
INVERSE_TEMPERATURE = tl.constexpr(0)
TOP_P = tl.constexpr(1)
MIN_P = tl.constexpr(2)
MARGIN = tl.constexpr(3)
TOP_K = tl.constexpr(4)
HEADER = tl.constexpr(5)

# Words of a decision: nodes on the path, bonus token, near ties, first node on the path without
# a distribution (-1 if none), then the path's nodes, the anchor first.
COUNT = tl.constexpr(0)
BONUS = tl.constexpr(1)
NEAR_TIES = tl.constexpr(2)
INVALID = tl.constexpr(3)
PATH = tl.constexpr(4)


class Matrix(NamedTuple):
    """Logits (N+1, V) or draft probabilities (N, V) whose rows are `stride` apart."""

    data: Any
    stride: Any


class TreeColumns(NamedTuple):
    """(N+1,) int64 each."""

    tokens: Any
    parents: Any
    depths: Any


class Shape(NamedTuple):
    """Nodes, tokens and chunks of a row."""

    size: Any
    vocab: Any
    splits: Any


class RowMax(NamedTuple):
    """Largest logit (+inf for a chunk with NaN) and its token (int64), (N+1, splits) each."""

    maxima: Any
    tokens: Any


class FilterBounds(NamedTuple):
    """What filters keep of each row.

    bounds: (N+1, 3) int64: largest distance from the row's maximum that is kept (unsigned bits),
    lowest token id kept at it, whether rounding could have moved either.
    masses: (N+1,): sum of the kept p, relative to the largest p.
    """

    bounds: Any
    masses: Any


class Race(NamedTuple):
    """Best and second value and the best one's token (int64), (N+1, splits) each."""

    best: Any
    second: Any
    tokens: Any


class Residuals(NamedTuple):
    """The residual distribution of each node after its children.

    probs: (N+1, V). scales: (N+1, 2) float64: inverse product of the residuals' sums, and their
    number. flags: (N+1,) int64: 1 if the child is accepted, plus 2 for a near tie.
    """

    probs: Any
    scales: Any
    flags: Any


class BonusRace(NamedTuple):
    """The race for the bonus token.

    candidates: (4, splits): best value, its lower and upper bound, upper bound of all other tokens
    of
    the chunk. tokens: (splits,) int64.
    """

    candidates: Any
    tokens: Any


@frozen
class Mode:
    """Compile-time choices of a kernel, passed as one constexpr.

    Attributes:
        chunk: Tokens of a chunk.
        tile: Tokens processed at a time.
        span: Power of two, at least the number of chunks.
        double: Whether the arithmetic is float64.
        tempered: Whether the temperature is not 1.
        greedy: Whether the temperature is 0.
        top_k: Whether top-k removes tokens.
        top_p: Whether top-p does.
        min_p: Whether min-p does.
    """

    chunk: int
    tile: int
    span: int
    double: bool
    tempered: bool
    greedy: bool
    top_k: bool
    top_p: bool
    min_p: bool

    @property
    def value(self) -> "Mode":
        """Itself, as kernels read it from a constexpr; the interpreter passes none."""
        return self

    @property
    def sampled(self) -> bool:
        return not self.greedy

    @property
    def filtered(self) -> bool:
        return not self.greedy and (self.top_k or self.top_p or self.min_p)

    @property
    def real(self) -> tl.dtype:
        return tl.float64 if self.double else tl.float32


@frozen(eq=False)
class JudgeBuffers:
    """Allocates the buffers of one launch.

    Attributes:
        shape: Nodes, tokens and chunks of a row.
        real: float32 or float64, the dtype of the arithmetic.
        device: Where the logits are.
    """

    shape: Shape
    real: torch.dtype
    device: torch.device

    def row_max(self) -> RowMax:
        return RowMax(self._real(*self._chunks), self._words(*self._chunks))

    def filter_bounds(self) -> FilterBounds:
        return FilterBounds(self._words(self.shape.size, 3), self._real(self.shape.size))

    def race(self) -> Race:
        chunks = self._chunks
        return Race(self._real(*chunks), self._real(*chunks), self._words(*chunks))

    def residuals(self) -> Residuals:
        size = self.shape.size
        return Residuals(
            self._real(size, self.shape.vocab),
            self.empty((size, 2), torch.float64),
            self._words(size),
        )

    def bonus_race(self) -> BonusRace:
        return BonusRace(self._real(4, self.shape.splits), self._words(self.shape.splits))

    def decision(self) -> Tensor:
        return self._words(PATH.value + self.shape.size)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Uninitialised memory."""
        return torch.empty(shape, dtype=dtype, device=self.device)

    @property
    def _chunks(self) -> tuple[int, int]:
        return self.shape.size, self.shape.splits

    def _real(self, *shape: int) -> Tensor:
        return self.empty(shape, self.real)

    def _words(self, *shape: int) -> Tensor:
        return self.empty(shape, torch.int64)
