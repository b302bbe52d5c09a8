"""Points: next tokens with a trust and no distribution, and continuations of a text as points."""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from attrs import frozen
from torch import Tensor

from draftwood.core.options import Sampling
from draftwood.core.proposals.base import Children, Frontier, Proposal, Table

Path = tuple[int, ...]


class LookupProposal(Proposal):
    """Next tokens of each path, each with the chance that trees score it with.

    A look-up says what may come and roughly how often it is right; of all other tokens it says
    nothing, so its chances sum to less than one and are no distribution that a rejection rule could
    divide by. `distribution` is the one-hot of the likeliest token: what an argmax proposal is, to
    a verifier that needs a distribution."""

    vocab_size: int
    passes: ClassVar[int] = 0  # type: ignore[misc]

    @abstractmethod
    def following(self, path: Path) -> Sequence[tuple[int, float]]:
        """(token, log chance) of what may follow `path`, best first, equal ones by token id."""

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
        state = tuple(
            (*at.state[row], token)
            for row, token in zip(rows.tolist(), tokens.tolist(), strict=True)
        )
        return Frontier(at.depth + 1, len(state), state)

    def probs(self, at: Frontier) -> Tensor:
        probs = torch.zeros((at.size, self.vocab_size), dtype=torch.float64)
        for i, path in enumerate(at.state):
            if found := self.following(path):
                probs[i, found[0][0]] = 1.0
        return probs

    def table(self, k: int) -> Table:
        return lazy_table(self.following, self.max_depth, k)


def lazy_table(
    following: Callable[[Path], Sequence[tuple[int, float]]], depth: int, k: int
) -> Table:
    """A table of distributions that depend on the whole path, each made when it is first looked at.

    following: (token, log chance) after a path, best first; asked for a path only after the one
    that it lengthens, and for none of `depth` tokens.
    """
    return Table.of_rows(_Rows(following, depth, k).row)


class _Rows:
    """A table's rows, each made when it is first looked at: most paths never are."""

    def __init__(
        self, following: Callable[[Path], Sequence[tuple[int, float]]], depth: int, k: int
    ) -> None:
        self.following, self.depth, self.k = following, depth, k
        self.before: list[int] = [-1]  # of each row that was named, the row whose token leads to it
        self.paths: dict[int, Path] = {0: ()}
        self.made: dict[int, tuple[list[int], list[float], range]] = {}

    def row(self, at: int) -> tuple[list[int], list[float], range]:
        """(tokens, log chances, rows of what follows each) after the path of row `at`."""
        known = self.made.get(at)
        if known is None:
            path = self.path(at)
            found = self.following(path)[: self.k] if len(path) < self.depth else ()
            start = len(self.before)
            self.before.extend([at] * len(found))
            below = range(start, len(self.before))
            known = [token for token, _ in found], [score for _, score in found], below
            self.made[at] = known
        return known

    def path(self, at: int) -> Path:
        """The tokens that lead to row `at`, whose row before was looked at."""
        if at not in self.paths:
            tokens, _, below = self.made[self.before[at]]
            self.paths[at] = (*self.paths[self.before[at]], tokens[at - below.start])
        return self.paths[at]


@frozen(eq=False)
class LookupPaths(LookupProposal):
    """Continuations without a distribution: paths of tokens, merged where they agree.

    paths: token sequences, most trusted first; each counts half as much as the one before.
    confidence: the conditional probability that trees score the paths' next tokens with, shared
    by weight where paths part. Nobody says how often they are right and a budget needs to know,
    so this is a prior; controllers correct it by what is accepted.
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
