"""The verifier: commits tokens so that the output law is exactly the target's."""

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor

from draftwood.core.interfaces.target import Kernels
from draftwood.core.randomness import Randomness
from draftwood.core.values import TokenTree, Verdict


class NodeLaws(ABC):
    """p at each node of a tree, lazily, after all processors with that node's own path.

    Verifiers see laws, never logits. size: N+1. greedy: laws are one-hot and `argmax` is cheap.
    round: index of the round, for draws that must differ between rounds at one position.
    """

    size: int
    greedy: bool
    round: int

    @abstractmethod
    def law(self, node: int) -> Tensor:
        """(V,) law of the token after `node`, float32 in decoding and float64 under the oracle.

        Raises NonFiniteLogits naming the node if its row is NaN or has no finite entry.
        """

    @abstractmethod
    def argmax(self, node: int) -> int:
        """The most likely token after `node` (the first of equal ones)."""

    @abstractmethod
    def position(self, node: int) -> int:
        """Absolute 0-based position of the token after `node`: the key of its draws."""


class Verifier(ABC):
    """Judges a tree. Stateless and immutable."""

    kernels: ClassVar[Kernels | None] = None

    @abstractmethod
    def judge(self, laws: NodeLaws, tree: TokenTree, rng: Randomness) -> Verdict:
        """Walk `tree` and commit tokens whose law is the target's.

        laws: p at each of the N+1 nodes. rng: the verifier's own stream; draws are keyed by the
        absolute position of the token they decide, never by call order.
        """
