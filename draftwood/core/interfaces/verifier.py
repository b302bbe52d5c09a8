"""The verifier: commits tokens so that the output distribution is exactly the target's."""

from abc import ABC, abstractmethod

from torch import Tensor

from draftwood.core.interfaces.target import Kernels, Target
from draftwood.core.options import Sampling
from draftwood.core.randomness import Randomness
from draftwood.core.tree import TokenTree
from draftwood.core.values import Verdict


class NodeDistributions(ABC):
    """p at each node of a tree, lazily, after all processors with that node's own path.

    size: N+1. greedy: distributions are one-hot and `argmax` is cheap. round: index of the round,
    for draws that must differ between rounds at one position. sampling: what makes a distribution
    of `scores`."""

    size: int
    greedy: bool
    round: int
    sampling: Sampling

    @abstractmethod
    def probs(self, node: int) -> Tensor:
        """(V,) distribution of the token after `node`, float32 in decoding and float64 under the
        oracle.

        Raises NonFiniteLogits naming the node if its row is NaN or has no finite entry.
        """

    @abstractmethod
    def argmax(self, node: int) -> int:
        """The most likely token after `node` (the first of equal ones)."""

    @abstractmethod
    def position(self, node: int) -> int:
        """Absolute 0-based position of the token after `node`: the key of its draws."""

    def scores(self) -> Tensor:
        """(N+1, V) of all nodes at once, where the target left them, after processors and before
        temperature and filters: for verifiers that make distributions on the device.

        Nothing is checked, and where there is no processor nothing is computed. A row from which
        no token can be drawn, NaN or without a finite entry, is the caller's to refuse.
        """
        raise NotImplementedError(f"{type(self).__name__} gives distributions, one node at a time")


class Verifier(ABC):
    """Judges a tree. Immutable."""

    kernels: Kernels | None = None

    @property
    def name(self) -> str:
        """What judges, for reports."""
        return type(self).__name__.lower()

    @property
    def reference(self) -> "Verifier | None":
        """The verifier whose decisions this one makes by other means, given the same keys; None
        for one that takes its draws from a `Randomness` itself. Whatever enumerates draws, or
        proves a distribution, works on the reference, and compares decisions with it."""
        return None

    def bind(self, target: Target) -> "Verifier":
        """Return the verifier to use with `target`; the engine calls it once.

        Raises:
            UnsupportedTarget: It cannot run on the device of this target's logits.
        """
        return self

    @abstractmethod
    def judge(self, distributions: NodeDistributions, tree: TokenTree, rng: Randomness) -> Verdict:
        """Walk `tree` and commit tokens whose distribution is the target's.

        distributions: p at each of the N+1 nodes. rng: the verifier's own stream; draws are keyed
        by the absolute position of the token they decide, never by call order."""
