"""A proposal whose distribution is any function of the path: what an autoregressive drafter
gives."""

from collections.abc import Callable

import torch
from attrs import evolve, frozen
from torch import Tensor

from draftwood.core.distributions import sampling_probs, stable_topk
from draftwood.core.options import Sampling
from draftwood.core.proposals import Children, Frontier, Proposal

Path = tuple[int, ...]


@frozen(eq=False)
class Autoregressive(Proposal):
    """Each node's own distribution, a drafter pass per level (EAGLE-3, a small language model).

    logits: draft tokens of a path, without the anchor -> (V,) scores of the next token.
    """

    logits: Callable[[Path], Tensor]
    max_depth: int
    sampling: Sampling
    pass_per_level = True

    def tempered(self, temperature: float) -> "Autoregressive":
        sampling = evolve(self.sampling, temperature=temperature)
        return Autoregressive(self.logits, self.max_depth, sampling)

    def root(self) -> Frontier:
        """state: the path of each node."""
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
