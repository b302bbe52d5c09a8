"""The budget controller: decides how much tree is worth the target's time on this machine."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar

from attrs import frozen

from draftwood.core.tree import TokenTree
from draftwood.core.values import Limits, RoundContext, RoundStats

M = TypeVar("M")
R = TypeVar("R")


class CostProbe(Protocol):
    """How forwards of one target can be priced on one machine.

    flops and bytes are counts for s tokens on c tokens of context.
    """

    @property
    def identity(self) -> Mapping[str, str]:
        """What the prices hold for (device, dtype, model, attention, versions): the key of a
        stored calibration."""
        ...

    @property
    def sizes(self) -> tuple[int, ...]:
        """Tokens that a forward is padded to: one costs what the next of these does. Empty where
        every size is run as it is."""
        ...

    def seconds(self, tokens: int, context: int) -> float:
        """Time one forward of a tree of `tokens` nodes on `context` tokens; runs it."""
        ...

    def flops(self, tokens: int, context: int) -> float: ...

    def bytes(self, tokens: int, context: int) -> float: ...

    def peaks(self) -> tuple[float, float]:
        """(FLOP/s, bytes/s) that this device reaches, measured by a short probe."""
        ...


@frozen
class ControllerState(Generic[M, R]):
    """What a controller knows. machine: outlives requests (times). request: does not (how well
    this text is accepted)."""

    machine: M
    request: R


@frozen
class Forecast:
    """What a controller expected of a round, by its budget 0..N.

    tokens: (N+1,) committed. seconds: (N+1,) of the whole round, the draft included.
    """

    tokens: tuple[float, ...]
    seconds: tuple[float, ...]


class BudgetController(ABC, Generic[M, R]):
    """Decides the budget of each round. Pure: frozen state in, frozen state out.

    Nothing it sees depends on the target's logits of the round it decides about.
    """

    @abstractmethod
    def init(self, costs: CostProbe) -> M:
        """What is known of the machine when a pipeline is built: stored, probed or a prior."""

    @abstractmethod
    def open(self) -> R:
        """What is known of a request before its first round."""

    @abstractmethod
    def before_draft(self, ctx: RoundContext, state: ControllerState[M, R]) -> Limits:
        """Most nodes worth drafting this round; 0 is a plain step, and no draft is made."""

    def should_expand(
        self, growth: TokenTree, ctx: RoundContext, state: ControllerState[M, R]
    ) -> bool:
        """Whether one more level is worth a drafter pass, given the tree so far."""
        return True

    def choose(self, tree: TokenTree, ctx: RoundContext, state: ControllerState[M, R]) -> int:
        """How many draft nodes of a grown tree to verify, 0..tree.nodes. Deterministic trees
        only: the engine never asks for drawn ones, whose distribution a cut would change."""
        return tree.nodes

    def observe(self, stats: RoundStats, state: ControllerState[M, R]) -> ControllerState[M, R]:
        """What is known after a round."""
        return state

    def forecast(self, stats: RoundStats, state: ControllerState[M, R]) -> Forecast | None:
        """What it expected of a round that `stats` describes, state being what was known before
        it; None if it predicts nothing. Asked after the fact, by reports: its cost is no round's,
        and of `stats` it may use the context, whether a draft was made, and the verified tree."""
        return None

    def explain(self, state: ControllerState[M, R]) -> str | None:
        """A sentence for the result when speculation did not run or was switched off."""
        return None
