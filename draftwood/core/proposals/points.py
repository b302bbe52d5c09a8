"""Points: continuations without a law."""

import math

import torch
from attrs import frozen
from torch import Tensor

from draftwood.core.options import Sampling
from draftwood.core.proposals.base import Children, Frontier, Proposal, Table


@frozen(eq=False)
class Points(Proposal):
    """Continuations without a law: paths of tokens, merged where they agree (prompt lookup).

    paths: token sequences, most trusted first; each counts half as much as the one before.
    confidence: the conditional probability that trees score the paths' next tokens with, shared
    by weight where paths part. A lookup does not say how often it is right and a budget needs to
    know, so this is a prior; controllers correct it by what is accepted. `law` is the one-hot of
    the most trusted path: what an argmax proposal is, to a verifier that needs a law.
    """

    paths: tuple[tuple[int, ...], ...]
    sampling: Sampling
    vocab_size: int
    confidence: float = 0.7

    @property
    def max_depth(self) -> int:  # type: ignore[override]
        return max((len(path) for path in self.paths), default=0)

    def _next(self, prefix: tuple[int, ...]) -> list[tuple[int, float]]:
        """(token, log q) of the tokens that follow `prefix`, best first, ties by token."""
        depth = len(prefix)
        masses: dict[int, float] = {}
        for rank, path in enumerate(self.paths):
            if len(path) > depth and path[:depth] == prefix:
                masses[path[depth]] = masses.get(path[depth], 0.0) + 0.5**rank
        total = sum(masses.values())
        scored = [(t, math.log(self.confidence * mass / total)) for t, mass in masses.items()]
        return sorted(scored, key=lambda pair: (-pair[1], pair[0]))

    def root(self) -> Frontier:
        return Frontier(0, 1, ((),))

    def expand(self, at: Frontier, k: int) -> Children:
        rows = [self._next(prefix)[:k] for prefix in at.state]
        width = max(map(len, rows), default=0)
        tokens = torch.zeros((at.size, width), dtype=torch.long)
        log_q = torch.full((at.size, width), -torch.inf, dtype=torch.float64)
        for i, row in enumerate(rows):
            for j, (token, score) in enumerate(row):
                tokens[i, j], log_q[i, j] = token, score
        return Children(tokens, log_q)

    def advance(self, at: Frontier, rows: Tensor, tokens: Tensor) -> Frontier:
        state = tuple(
            (*at.state[row], token)
            for row, token in zip(rows.tolist(), tokens.tolist(), strict=True)
        )
        return Frontier(at.depth + 1, len(state), state)

    def law(self, at: Frontier) -> Tensor:
        law = torch.zeros((at.size, self.vocab_size), dtype=torch.float64)
        for i, prefix in enumerate(at.state):
            for path in self.paths:
                if len(path) > at.depth and path[: at.depth] == prefix:
                    law[i, path[at.depth]] = 1.0
                    break
        return law

    def table(self, k: int) -> Table:
        prefixes: list[tuple[int, ...]] = [()]
        table = Table([], [], [])
        for prefix in prefixes:  # grows while it is read: breadth first over distinct prefixes
            row = self._next(prefix)[:k]
            table.tokens.append([token for token, _ in row])
            table.log_q.append([score for _, score in row])
            table.next_row.append(list(range(len(prefixes), len(prefixes) + len(row))))
            prefixes.extend((*prefix, token) for token, _ in row)
        return table
