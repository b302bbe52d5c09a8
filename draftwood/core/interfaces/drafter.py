"""The drafter: proposes a distribution over the next few tokens."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from attrs import frozen
from torch import Tensor

from draftwood.core.interfaces.target import Target
from draftwood.core.kernels.graphs import Capturing
from draftwood.core.kernels.protocol import Kernels
from draftwood.core.options import Sampling
from draftwood.core.proposals import Proposal
from draftwood.core.randomness import Randomness
from draftwood.core.values import Limits


class DraftSession(ABC):
    """One request's state in the drafter. Owns what the drafter keeps of committed tokens."""

    @abstractmethod
    def commit(self, tokens: Sequence[int], features: Tensor | None) -> None:
        """Committed tokens whose K/V the target now holds, in order, once each.

        features: (len(tokens), len(taps) * H), the tapped outputs at these tokens, None if the
        drafter taps nothing. The anchor is not among them: its features do not exist yet.
        """

    @abstractmethod
    def fork(self) -> "DraftSession":
        """An independent copy."""


@frozen(eq=False)
class DraftWork:
    """What one request gives to `Drafter.propose`.

    anchor: last committed token. position: its 0-based position, so a node of depth d stands at
    position + d. limits: what the controller allows. rng: the drafter's own stream.
    """

    session: DraftSession
    anchor: int
    position: int
    limits: Limits
    rng: Randomness


class Drafter(ABC):
    """Proposes a distribution over the next tokens. Immutable; state lives in sessions.

    A plugin author writes this class and a registration hook (see
    `draftwood.core.registry.plugin.Plugin`)."""

    @property
    def taps(self) -> tuple[int, ...]:
        """0-based target layers whose outputs `commit` needs; () for none."""
        return ()

    def bind(self, target: Target) -> None:
        """Called once when a pipeline is built: check the pairing (PairingError) and take shared
        weights. A drafter serves one target."""
        return

    def capture(self, kernels: Kernels, capturing: Capturing) -> None:
        """Called once, after `bind`, where forwards are captured: a drafter whose passes have one
        size may capture them as well. kernels: the verifier's, which attend over whole buffers
        with lengths that lie on the device. One that does nothing runs as it did."""
        return

    @abstractmethod
    def open(self, target: Target, sampling: Sampling) -> DraftSession:
        """A session for one request that decodes with this temperature and these filters."""

    @abstractmethod
    def propose(self, work: Sequence[DraftWork]) -> Sequence[Proposal]:
        """One proposal per request, for the tokens after its anchor."""
