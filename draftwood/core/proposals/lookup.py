"""Look-ups: next tokens with estimated probabilities for a few of them, and no distribution."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from attrs import frozen
from torch import Tensor

from draftwood.core.options import Sampling
from draftwood.core.proposals.base import Children, Frontier, Proposal
from draftwood.core.proposals.table import Path, Table, path_table


class LookupProposal(Proposal):
    """Next tokens of each path, each with the probability that trees score it with.

    A look-up names a few tokens and how often they are right. It says nothing about other tokens,
    so its probabilities sum to less than one and no rejection rule can use them as q. `probs` is
    the one-hot of the most likely token: what an argmax proposal is to a verifier that needs a
    distribution.

    Attributes:
        vocab_size: V of the target.
    """

    vocab_size: int
    passes: ClassVar[int] = 0  # type: ignore[misc]

    @abstractmethod
    def following(self, path: Path) -> Sequence[tuple[int, float]]:
        """(token, log probability) of next tokens, most likely first, equal ones by token id."""

    def root(self) -> Frontier:
        return Frontier(0, 1, ((),))

    def expand(self, at: Frontier, k: int) -> Children:
        rows = [self.following(path)[:k] for path in at.state]
        width = max(map(len, rows), default=0)
        tokens = torch.zeros((at.size, width), dtype=torch.long)
        log_q = torch.full((at.size, width), -torch.inf, dtype=torch.float64)
        for i, row in enumerate(rows):
            for j, (token, score) in enumerate(row):
                tokens[i, j], log_q[i, j] = token, score
        return Children(tokens, log_q)

    def advance(self, at: Frontier, rows: Tensor, tokens: Tensor) -> Frontier:
        paths = tuple(
            (*at.state[row], token)
            for row, token in zip(rows.tolist(), tokens.tolist(), strict=True)
        )
        return Frontier(at.depth + 1, len(paths), paths)

    def probs(self, at: Frontier) -> Tensor:
        probs = torch.zeros((at.size, self.vocab_size), dtype=torch.float64)
        for i, path in enumerate(at.state):
            if candidates := self.following(path):
                probs[i, candidates[0][0]] = 1.0
        return probs

    def table(self, k: int) -> Table:
        return path_table(self.following, self.max_depth, k)


@frozen(eq=False)
class LookupPaths(LookupProposal):
    """Given continuations, merged where they share a prefix.

    Attributes:
        paths: Token sequences, most likely first; each weighs half as much as the one before.
        confidence: Probability that the next token is one of the paths', shared by weight where
            paths part. It is a prior; controllers correct it by what is accepted.
    """

    paths: tuple[Path, ...]
    sampling: Sampling
    vocab_size: int
    confidence: float = 0.7

    @property
    def max_depth(self) -> int:  # type: ignore[override]
        return max((len(path) for path in self.paths), default=0)

    def following(self, path: Path) -> list[tuple[int, float]]:
        depth = len(path)
        masses: dict[int, float] = {}
        for rank, whole in enumerate(self.paths):
            if len(whole) > depth and whole[:depth] == path:
                masses[whole[depth]] = masses.get(whole[depth], 0.0) + 0.5**rank
        total = sum(masses.values())
        scored = [(t, math.log(self.confidence * mass / total)) for t, mass in masses.items()]
        return sorted(scored, key=lambda pair: (-pair[1], pair[0]))
