"""What one source says, kept for comparison with the others."""

from attrs import frozen
from torch import Tensor

from draftwood.core.proposals import Proposal
from draftwood.plugins.drafters.union.host import Listing, Said
from draftwood.plugins.drafters.union.proposal import listing

JUDGED_AT = 1.0
"""Temperature at which sources are compared: at a low one a near miss counts as a miss."""


@frozen(eq=False)
class Voice:
    """A proposal at that temperature. listed: token by token on the host, None where that would
    run a model. next: what it says of the next token, (V,) where it is not listed; None for
    silence. depth: of the deepest token that it says something of."""

    listed: Listing | None
    next: Said | Tensor | None
    depth: int

    @classmethod
    def of(cls, proposal: Proposal, vocab_size: int) -> "Voice":
        judged = proposal.tempered(JUDGED_AT)
        depth = judged.max_depth
        listed = listing(judged, vocab_size)
        if listed is not None:
            said = listed.root() if depth else None
            return cls(listed, said if said and said.chances else None, depth)
        probs = judged.probs(judged.root())[0] if depth else None
        return cls(None, probs if probs is not None and float(probs.sum()) > 0.0 else None, depth)

    def chance(self, token: int) -> float | None:
        """That it gave the next token; None if it was silent."""
        if isinstance(self.next, Said):
            return self.next.chances.get(token, self.next.rest)
        return None if self.next is None else float(self.next[token])
