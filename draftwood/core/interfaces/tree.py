"""The tree policy: turns a proposal into a draft tree."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from draftwood.core.proposals import Proposal
from draftwood.core.randomness import Randomness
from draftwood.core.tree import TokenTree
from draftwood.core.values import Limits

ShouldExpand = Callable[[TokenTree], bool]
"""Asked with the tree so far before a level that costs a drafter pass: is it worth it?"""


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
        """A tree of at most `limits.nodes` draft nodes in growth order, node 0 the anchor.

        Every prefix of the result is a valid tree. Drawn trees carry the distributions they were
        drawn from, take their draws from `rng` keyed by position, and drop nothing they have drawn.
        `should_expand` is asked only between levels of a proposal with `pass_per_level`."""
