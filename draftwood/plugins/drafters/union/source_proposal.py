"""The proposal of one source, kept to compare the source with the others."""

from attrs import frozen
from torch import Tensor

from draftwood.core.proposals import Proposal
from draftwood.plugins.drafters.union.host_mixture import (
    ListedSource,
    SourceDistribution,
    listed_source,
)

COMPARISON_TEMPERATURE = 1.0
"""Temperature at which sources are compared: at a low one a near miss counts as a miss."""


@frozen(eq=False)
class SourceProposal:
    """A proposal at that temperature.

    Attributes:
        listed: The source on the host; None where that would run its model.
        root: Distribution of the next token, (V,) if the source is not listed; None if it has none.
        depth: Deepest token that it proposes.
    """

    listed: ListedSource | None
    root: SourceDistribution | Tensor | None
    depth: int

    @classmethod
    def of(cls, proposal: Proposal, vocab_size: int) -> "SourceProposal":
        """A source's proposal of a round."""
        proposal = proposal.tempered(COMPARISON_TEMPERATURE)
        depth = proposal.max_depth
        listed = listed_source(proposal, vocab_size)
        if listed is not None:
            root = listed.root() if depth else None
            return cls(listed, root if root and root.probs else None, depth)
        probs = proposal.probs(proposal.root())[0] if depth else None
        return cls(None, probs if probs is not None and float(probs.sum()) > 0.0 else None, depth)

    def prob(self, token: int) -> float | None:
        """Probability of the next token; None without a distribution."""
        if isinstance(self.root, SourceDistribution):
            return self.root.prob(token)
        return None if self.root is None else float(self.root[token])
