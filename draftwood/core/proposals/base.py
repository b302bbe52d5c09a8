"""The interface of a proposal, and what it hands to tree policies."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, cast

import torch
from attrs import frozen
from torch import Tensor

from draftwood.core.options import Sampling


@frozen(eq=False)
class Frontier:
    """F nodes of equal depth from which a proposal can go on.

    depth: of the nodes, 0 for the root. size: F. state: what the proposal needs to know of each
    node's path, of its own making; nobody else looks inside.
    """

    depth: int
    size: int
    state: Any = None


@frozen(eq=False)
class Children:
    """tokens: (F, k) int64 target ids; log_q: (F, k) conditional log-probabilities, best first,
    equal ones by token id. k may be smaller than asked where the distribution has fewer tokens;
    tokens of probability zero are -inf and never become nodes. unlisted_bound: (F,) float64, more
    than the log q of any token that was not looked at; None where all were."""

    tokens: Tensor
    log_q: Tensor
    unlisted_bound: Tensor | None = None


Row = tuple[Sequence[int], Sequence[float], Sequence[int]]


@frozen(eq=False)
class Table:
    """A whole proposal on the host, for distributions with few distinct conditionals: what a heap
    needs.

    Row 0 is the root's. Row r lists tokens[r] with log_q[r], best first (ties by token id), and
    next_row[r][j], the row of the distribution after tokens[r][j], or -1 where the proposal ends.
    Rows may be made when they are looked at: they are only ever indexed, by what next_row names.
    """

    tokens: list[list[int]]
    log_q: list[list[float]]
    next_row: list[list[int]]

    def row(self, at: int) -> Row:
        """(tokens, log_q, next_row) of a row number."""
        return self.tokens[at], self.log_q[at], self.next_row[at]

    @staticmethod
    def of_rows(row: Callable[[int], Row]) -> "Table":
        """A table whose rows are made when they are looked at. row: as the method, and the same at
        every call."""
        tokens, log_q, next_row = (cast(Any, _Column(row, part)) for part in range(3))
        return _MadeTable(tokens, log_q, next_row, row)


@frozen(eq=False)
class _MadeTable(Table):
    made: Callable[[int], Row]

    def row(self, at: int) -> Row:
        return self.made(at)


class _Column:
    """One part of each row, by row number."""

    def __init__(self, row: Callable[[int], Row], part: int) -> None:
        self.row, self.part = row, part

    def __getitem__(self, at: int) -> Any:
        return self.row(at)[self.part]


class Proposal(ABC):
    """Conditional next-token distributions along tree paths, from one or more drafter passes.

    max_depth: deepest node it can give. passes: how often the drafter's model ran for it; 0 for
    what was looked up. pass_per_level: whether `advance` runs the drafter. min_score_temperature:
    the lowest temperature that trees are scored at unasked. Below it a distribution promises far
    more than it keeps: at 0.3 one predicted 5.4 tokens a round where 2.3 came, and at 0 every tree
    collapses to a chain. sampling: the temperature and filters that its distributions have. device:
    where its distributions lie."""

    max_depth: int
    passes: int = 1
    pass_per_level: ClassVar[bool] = False
    min_score_temperature: ClassVar[float] = 0.8
    sampling: Sampling

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @abstractmethod
    def root(self) -> Frontier:
        """The frontier of the anchor alone."""

    @abstractmethod
    def expand(self, at: Frontier, k: int) -> Children:
        """The k most likely next tokens of each node in `at`."""

    @abstractmethod
    def advance(self, at: Frontier, rows: Tensor, tokens: Tensor) -> Frontier:
        """The frontier of kept children: child i is `tokens[i]` under node `rows[i]` of `at`.

        rows, tokens: (F',) int64. Call only for nodes that are kept: it may cost a pass.
        """

    @abstractmethod
    def probs(self, at: Frontier) -> Tensor:
        """(F, V) next-token distributions over the target's vocabulary: exactly what draws must
        use."""

    def tempered(self, temperature: float) -> "Proposal":
        """The same proposal with its distributions at another temperature, filters unchanged: for
        scoring deterministic trees. A proposal without a temperature returns itself."""
        return self

    def shortlisted(self, width: int) -> "Proposal":
        """A cheaper form whose `expand` looks at few tokens, the more the larger `width` is, and
        says what it may have missed; itself where that is no saving."""
        return self

    def table(self, k: int) -> Table | None:
        """Everything a heap needs with the k best tokens of each conditional, in one copy to the
        host, or None if the distribution has too many distinct conditionals."""
        return None
