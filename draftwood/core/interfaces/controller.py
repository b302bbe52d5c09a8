"""The budget controller: decides how many nodes to verify on this machine."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar

from attrs import frozen

from draftwood.core.tree import TokenTree
from draftwood.core.values import Limits, RoundContext, RoundStats

M = TypeVar("M")
R = TypeVar("R")


class CostProbe(Protocol):
    """Costs of a target's forward passes on one machine.

    `tokens` are the nodes of the tree, the anchor included; `context` the committed tokens before.
    """

    @property
    def identity(self) -> Mapping[str, str]:
        """What the costs hold for (device, dtype, model, attention, versions): the key of a
        stored calibration."""
        ...

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes that forward passes are padded to, ascending: a pass costs what the next size
        costs. Empty where passes are not padded."""
        ...

    def seconds(self, tokens: int, context: int) -> float:
        """Run one forward pass and time it."""
        ...

    def flops(self, tokens: int, context: int) -> float:
        """Floating-point operations of a forward pass."""
        ...

    def bytes(self, tokens: int, context: int) -> float:
        """Bytes of memory traffic of a forward pass."""
        ...

    def peaks(self) -> tuple[float, float]:
        """(FLOP/s, bytes/s) that this device reaches, measured by a short probe."""
        ...


@frozen
class ControllerState(Generic[M, R]):
    """What a controller has learned.

    Attributes:
        machine: Outlives requests, such as times.
        request: Of one request, such as the acceptance of its text.
    """

    machine: M
    request: R


@frozen
class Forecast:
    """What a controller expected of a round, by budget 0..N.

    Attributes:
        tokens: (N+1,) committed tokens.
        seconds: (N+1,) of the whole round, the draft included.
    """

    tokens: tuple[float, ...]
    seconds: tuple[float, ...]


class BudgetController(ABC, Generic[M, R]):
    """Decides the budget of each round. Pure: frozen state in, frozen state out.

    No argument depends on the target's logits of the round that is decided.
    """

    @abstractmethod
    def init(self, costs: CostProbe) -> M:
        """The machine state of a new pipeline: stored, probed or a prior."""

    @abstractmethod
    def open(self) -> R:
        """The request state before a request's first round."""

    @abstractmethod
    def before_draft(self, ctx: RoundContext, state: ControllerState[M, R]) -> Limits:
        """Limits of this round's tree. With 0 nodes the round is a plain step without a draft."""

    def should_expand(
        self, growth: TokenTree, ctx: RoundContext, state: ControllerState[M, R]
    ) -> bool:
        """Whether one more level pays for a forward pass of the drafter, given the tree so far."""
        return True

    def choose(self, tree: TokenTree, ctx: RoundContext, state: ControllerState[M, R]) -> int:
        """How many draft nodes of a grown tree to verify, 0..tree.nodes.

        Called for deterministic trees only: cutting drawn ones would change their distribution.
        """
        return tree.nodes

    def observe(self, stats: RoundStats, state: ControllerState[M, R]) -> ControllerState[M, R]:
        """The state after a round."""
        return state

    def forecast(self, stats: RoundStats, state: ControllerState[M, R]) -> Forecast | None:
        """What the controller expected of a round; None if it predicts nothing.

        Called by reports after the round, so its cost is not part of any round.

        Args:
            stats: Of the round. A forecast may use its context, whether a draft was made, and the
                verified tree, and nothing else.
            state: As it was before the round.
        """
        return None

    def explain(self, state: ControllerState[M, R]) -> str | None:
        """One sentence for the result if speculation did not run or was switched off."""
        return None
