"""The verifier: commits tokens so that the output distribution is exactly the target's."""

from abc import ABC, abstractmethod

from torch import Tensor

from draftwood.core.interfaces.target import Target
from draftwood.core.options import Sampling
from draftwood.core.randomness import Randomness
from draftwood.core.tree import TokenTree
from draftwood.core.values import Verdict


class NodeDistributions(ABC):
    """p at each node of a tree, after all processors with that node's own path.

    Attributes:
        size: N+1.
        greedy: Distributions are one-hot and `argmax` is cheap.
        round: Index of the round, for draws that must differ between rounds at one position.
        sampling: Turns `scores` into distributions.
    """

    size: int
    greedy: bool
    round: int
    sampling: Sampling

    @abstractmethod
    def probs(self, node: int) -> Tensor:
        """(V,) distribution of the token after `node`.

        It is float32 in decoding and float64 under the testing oracle.

        Raises:
            NonFiniteLogits: The node's row is NaN or has no finite entry.
        """

    @abstractmethod
    def argmax(self, node: int) -> int:
        """The most likely token after `node`; of equal ones the first."""

    def ends(self, node: int) -> bool:
        """Whether the text ends with this node's token if it is accepted.

        A verifier that has accepted such a node is done: it returns a verdict without a bonus. It
        reads nothing of the node's distribution and of the nodes below it, and draws nothing for
        them, since a grammar, say, may have no token after its end.
        """
        return False

    @abstractmethod
    def position(self, node: int) -> int:
        """Absolute 0-based position of the token after `node`: the key of its draws."""

    def scores(self) -> Tensor:
        """(N+1, V) of all nodes, on the target's device, before temperature and filters.

        For verifiers that compute distributions on the device. Rows are not checked: the caller
        must reject a row that is NaN or has no finite entry.
        """
        raise NotImplementedError(f"{type(self).__name__} gives distributions, one node at a time")


class Verifier(ABC):
    """Judges a tree. Immutable."""

    @property
    def name(self) -> str:
        """The verifier's name in reports."""
        return type(self).__name__.lower()

    @property
    def reference(self) -> "Verifier | None":
        """The verifier on the host that makes the same decisions from the same keys.

        None for a verifier that takes its draws from a `Randomness`. Enumeration and proofs of the
        output distribution use the reference, and compare decisions with it.
        """
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

        Args:
            distributions: p at each of the N+1 nodes.
            tree: The verified tree.
            rng: The verifier's own stream. Draws are keyed by the absolute position of the token
                that they decide, never by call order.
        """
