"""A proposal whose distribution is any function of the path, as autoregressive drafters make."""

from collections.abc import Callable

import torch
from attrs import evolve, frozen
from torch import Tensor

from draftwood.core.distributions import sampling_probs, stable_topk
from draftwood.core.options import Sampling
from draftwood.core.proposals import Children, Frontier, Proposal

Path = tuple[int, ...]


@frozen(eq=False)
class AutoregressiveProposal(Proposal):
    """Its own distribution at each node, one drafter forward per level.

    EAGLE-3 and small language models draft in this form.

    Attributes:
        logits: Draft tokens of a path, without the anchor -> (V,) logits of the next token.
        max_depth: Of the deepest node.
        sampling: Temperature and filters.
    """

    logits: Callable[[Path], Tensor]
    max_depth: int
    sampling: Sampling
    pass_per_level = True

    def tempered(self, temperature: float) -> "AutoregressiveProposal":
        return evolve(self, sampling=evolve(self.sampling, temperature=temperature))

    def root(self) -> Frontier:
        """The frontier's state is the path of each node."""
        return Frontier(0, 1, ((),))

    def expand(self, at: Frontier, k: int) -> Children:
        tokens, probs = stable_topk(self.probs(at), k)
        return Children(tokens, probs.double().log())

    def advance(self, at: Frontier, rows: Tensor, tokens: Tensor) -> Frontier:
        pairs = zip(rows.tolist(), tokens.tolist(), strict=True)
        paths = tuple((*at.state[row], token) for row, token in pairs)
        return Frontier(at.depth + 1, len(paths), paths)

    def probs(self, at: Frontier) -> Tensor:
        return torch.stack([sampling_probs(self.logits(path), self.sampling) for path in at.state])
