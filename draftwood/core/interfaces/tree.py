"""The tree policy: turns a proposal into a draft tree."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from draftwood.core.proposals import Proposal
from draftwood.core.randomness import Randomness
from draftwood.core.tree import TokenTree
from draftwood.core.values import Limits

ShouldExpand = Callable[[TokenTree], bool]
"""(tree so far) -> whether one more level pays for a forward pass of the drafter."""


class TreePolicy(ABC):
    """Turns a proposal into a tree. Stateless and immutable."""

    @abstractmethod
    def grow(
        self,
        anchor: int,
        proposal: Proposal,
        limits: Limits,
        should_expand: ShouldExpand,
        rng: Randomness,
    ) -> TokenTree:
        """A tree in growth order, node 0 the anchor. Every prefix of it is a valid tree.

        `draftwood.TreeBuilder` builds one node by node. The engine validates the result.

        Args:
            anchor: The last committed token.
            proposal: Conditional distributions along paths.
            limits: At most `limits.nodes` draft nodes, at most `limits.depth` deep.
            should_expand: Called only between levels of a proposal with `pass_per_level`; stop
                growing when it returns False.
            rng: Draws of a drawn tree, keyed by position. A drawn tree carries the distributions it
                was drawn from, and drops no node that was drawn.
        """
