"""The interface of a proposal, and what it gives to tree policies."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from attrs import frozen
from torch import Tensor

from draftwood.core.errors import PluginError
from draftwood.core.options import Sampling
from draftwood.core.proposals.table import Table
from draftwood.core.renames import renamed_method


@frozen(eq=False)
class Frontier:
    """F nodes of equal depth whose children a proposal can give.

    Attributes:
        depth: Depth of the nodes, 0 for the root.
        size: F.
        state: What the proposal keeps of each node's path. Private to the proposal.
    """

    depth: int
    size: int
    state: Any = None


@frozen(eq=False)
class Children:
    """The most likely next tokens of each node of a frontier.

    Attributes:
        tokens: (F, k) int64 target ids. k may be smaller than requested where the distribution has
            fewer tokens.
        log_q: (F, k) conditional log-probabilities, highest first, equal ones by token id. Tokens
            of probability zero are -inf and never become nodes.
        unlisted_bound: (F,) float64, above the log q of every token that was not examined; None
            where all were.
    """

    tokens: Tensor
    log_q: Tensor
    unlisted_bound: Tensor | None = None


class Proposal(ABC):
    """Conditional next-token distributions along tree paths.

    Attributes:
        max_depth: Deepest node that it can propose.
        passes: Forward passes of the drafter's model that made it; 0 for a look-up.
        pass_per_level: Whether `advance` runs the drafter's model.
        min_score_temperature: Lowest temperature at which trees are scored by default. Below it
            path scores overstate acceptance: at 0.3 they predicted 5.4 tokens a round where 2.3
            were accepted, and at 0 every tree becomes a chain.
        sampling: Temperature and filters of its distributions.
    """

    max_depth: int
    passes: int = 1
    pass_per_level: ClassVar[bool] = False
    min_score_temperature: ClassVar[float] = 0.8
    sampling: Sampling

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if renamed := renamed_method(cls):
            raise PluginError(renamed)

    @property
    def device(self) -> torch.device:
        """Where its distributions are."""
        return torch.device("cpu")

    @abstractmethod
    def root(self) -> Frontier:
        """The frontier of the anchor alone."""

    @abstractmethod
    def expand(self, at: Frontier, k: int) -> Children:
        """The k most likely next tokens of each node in `at`."""

    @abstractmethod
    def advance(self, at: Frontier, rows: Tensor, tokens: Tensor) -> Frontier:
        """The frontier of kept children.

        Call it for kept nodes only: it may cost a forward pass.

        Args:
            at: The frontier of the parents.
            rows: (F',) int64, the parent of each child, as a row of `at`.
            tokens: (F',) int64 target ids of the children.
        """

    @abstractmethod
    def probs(self, at: Frontier) -> Tensor:
        """(F, V) next-token distributions over the target's vocabulary, which draws must use."""

    def tempered(self, temperature: float) -> "Proposal":
        """The same proposal at another temperature, filters unchanged, for scoring trees.

        A proposal without a temperature returns itself.
        """
        return self

    def shortlisted(self, width: int) -> "Proposal":
        """A cheaper form whose `expand` examines about `width` tokens and bounds all others.

        Returns itself where that saves nothing.
        """
        return self

    def table(self, k: int) -> Table | None:
        """The k most likely tokens of each conditional, in one copy to the host.

        None if the proposal has too many distinct conditionals.
        """
        return None
