"""The drafter: proposes a distribution over the next few tokens."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from attrs import frozen
from torch import Tensor

from draftwood.core.interfaces.target import Target
from draftwood.core.kernels.capture import Capturing
from draftwood.core.kernels.protocol import Kernels
from draftwood.core.options import Sampling
from draftwood.core.proposals import Proposal
from draftwood.core.randomness import Randomness
from draftwood.core.values import Limits


class DraftSession(ABC):
    """One request's state in the drafter. Owns what the drafter keeps of committed tokens."""

    @abstractmethod
    def commit(self, tokens: Sequence[int], features: Tensor | None) -> None:
        """Receive committed tokens whose K/V the target holds, in order, each token once.

        Args:
            tokens: Without the anchor, whose features do not exist yet.
            features: (len(tokens), len(taps) * H), the tapped outputs at these tokens; None if the
                drafter taps no layer.
        """

    @abstractmethod
    def fork(self) -> "DraftSession":
        """An independent copy."""


@frozen(eq=False)
class DraftWork:
    """What `Drafter.propose` gets for one request.

    Attributes:
        session: The request's session.
        anchor: The last committed token.
        position: 0-based position of the anchor; a node of depth d is at position + d.
        limits: What the controller allows.
        rng: The drafter's own stream of draws.
    """

    session: DraftSession
    anchor: int
    position: int
    limits: Limits
    rng: Randomness


class Drafter(ABC):
    """Proposes a distribution over the next tokens. Immutable; state lives in sessions.

    A plugin consists of such a class and a registration hook (see `draftwood.Plugin`).
    """

    @property
    def taps(self) -> tuple[int, ...]:
        """0-based target layers whose outputs `DraftSession.commit` needs; () for none."""
        return ()

    def bind(self, target: Target) -> "Drafter":
        """Return the drafter to use with `target`; the engine calls it once.

        This object stays as it is, so that it can be bound to several targets. The returned one
        holds what it shares with the target, such as embedding rows and the output head.

        Raises:
            PairingError: The drafter was not made for this target.
        """
        return self

    def capture(self, kernels: Kernels, capturing: Capturing) -> "Drafter":
        """Return the drafter to use where forward passes are captured as graphs.

        Called once, on a bound drafter. The default runs without capturing.

        Args:
            kernels: Attend over whole buffers; lengths are read on the device.
            capturing: Captures one call, or says why it cannot.
        """
        return self

    @abstractmethod
    def open(self, target: Target, sampling: Sampling) -> DraftSession:
        """A session for one request that decodes with this temperature and these filters."""

    @abstractmethod
    def propose(self, work: Sequence[DraftWork]) -> Sequence[Proposal]:
        """One proposal per request, for the tokens after its anchor."""
