"""Proposals: the drafter's law over the next few tokens, one class per form of law.

A proposal answers "given this path of draft tokens, what comes next?". The forms differ in what
the answer depends on: nothing but the depth (*factorized*, DFlash), the parent token (*Markov*,
DFlash 2), the K branch weights carried along the path (*mixture*, DBlast), or everything
(*autoregressive*: a pass per level). Tree policies use this interface only, so every policy grows
trees over every form.
"""

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from attrs import field, frozen
from torch import Tensor

from draftwood.core.laws import best, sampling_law
from draftwood.core.options import Sampling


@frozen(eq=False)
class Frontier:
    """F nodes of equal depth from which a proposal can go on.

    depth: of the nodes, 0 for the root. size: F. state: what the proposal needs to know of each
    node's path, of its own making; nobody else looks inside.
    """

    depth: int
    size: int
    state: Any = None


@frozen(eq=False)
class Children:
    """tokens: (F, k) int64 target ids; log_q: (F, k) conditional log-probabilities, best first,
    equal ones by token id. k may be smaller than asked where the law has fewer tokens; tokens of
    probability zero are -inf and never become nodes."""

    tokens: Tensor
    log_q: Tensor


@frozen(eq=False)
class Table:
    """A whole proposal on the host, for laws with few distinct conditionals: what a heap needs.

    Row 0 is the root's. Row r lists tokens[r] with log_q[r], best first (ties by token id), and
    next_row[r][j], the row of the law after tokens[r][j], or -1 where the proposal ends.
    """

    tokens: list[list[int]]
    log_q: list[list[float]]
    next_row: list[list[int]]


class Proposal(ABC):
    """Conditional next-token laws along tree paths, from one or more drafter passes.

    max_depth: deepest node it can give. pass_per_level: whether `advance` runs the drafter.
    sampling: the temperature and filters that its laws have. device: where its laws lie.
    """

    max_depth: int
    pass_per_level: ClassVar[bool] = False
    sampling: Sampling

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @abstractmethod
    def root(self) -> Frontier:
        """The frontier of the anchor alone."""

    @abstractmethod
    def expand(self, at: Frontier, k: int) -> Children:
        """The k most likely next tokens of each node in `at`."""

    @abstractmethod
    def advance(self, at: Frontier, rows: Tensor, tokens: Tensor) -> Frontier:
        """The frontier of kept children: child i is `tokens[i]` under node `rows[i]` of `at`.

        rows, tokens: (F',) int64. Call only for nodes that are kept: it may cost a pass.
        """

    @abstractmethod
    def law(self, at: Frontier) -> Tensor:
        """(F, V) next-token laws over the target's vocabulary: exactly what draws must use."""

    def tempered(self, temperature: float) -> "Proposal":
        """The same proposal with its laws at another temperature, filters unchanged: for scoring
        deterministic trees. A proposal without a temperature returns itself."""
        return self

    def table(self, k: int) -> Table | None:
        """Everything a heap needs with the k best tokens of each conditional, in one copy to the
        host, or None if the law has too many distinct conditionals."""
        return None


@frozen(eq=False)
class Vocabulary:
    """Where a reduced draft vocabulary lies in the target's: ids (V_draft,) int64, or None if
    they are the same. size: of the target's vocabulary."""

    size: int
    ids: Tensor | None = None

    def tokens(self, draft_ids: Tensor) -> Tensor:
        return draft_ids if self.ids is None else self.ids[draft_ids]

    def scatter(self, law: Tensor) -> Tensor:
        """(..., V_draft) -> (..., V): unmapped ids have probability zero."""
        if self.ids is None and law.shape[-1] == self.size:
            return law
        full = law.new_zeros((*law.shape[:-1], self.size))
        ids = self.ids if self.ids is not None else torch.arange(law.shape[-1], device=law.device)
        return full.index_copy(-1, ids, law)


@frozen(eq=False)
class Factorized(Proposal):
    """Independent positions: the law at depth d does not depend on the path (DFlash, 2602.06036).

    logits: (D, V_draft), row d for the token at depth d + 1. One pass serves the whole tree.
    """

    logits: Tensor
    sampling: Sampling
    vocabulary: Vocabulary
    _cache: dict[str, Tensor] = field(factory=dict, init=False, repr=False)

    @property
    def max_depth(self) -> int:  # type: ignore[override]
        return self.logits.shape[0]

    @property
    def device(self) -> torch.device:
        return self.logits.device

    def tempered(self, temperature: float) -> "Factorized":
        return Factorized(self.logits, _at_temperature(self.sampling, temperature), self.vocabulary)

    @property
    def _laws(self) -> Tensor:
        if "laws" not in self._cache:
            self._cache["laws"] = sampling_law(self.logits, self.sampling)
        return self._cache["laws"]

    def root(self) -> Frontier:
        return Frontier(0, 1)

    def expand(self, at: Frontier, k: int) -> Children:
        tokens, law = best(self._laws[at.depth], k, self.vocabulary.ids)
        shape = (at.size, tokens.shape[-1])
        return Children(tokens.expand(shape), law.double().log().expand(shape))

    def advance(self, at: Frontier, rows: Tensor, tokens: Tensor) -> Frontier:
        return Frontier(at.depth + 1, rows.shape[0])

    def law(self, at: Frontier) -> Tensor:
        row = self.vocabulary.scatter(self._laws[at.depth])
        return row.expand(at.size, -1)

    def table(self, k: int) -> Table:
        tokens, law = best(self._laws, k, self.vocabulary.ids)
        width, depth = tokens.shape[-1], self.max_depth
        return Table(
            tokens.tolist(),
            law.double().log().tolist(),
            [[d + 1 if d + 1 < depth else -1] * width for d in range(depth)],
        )


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


@frozen(eq=False)
class Markov(Proposal):
    """The law depends on the parent token, over a few candidates a position (DFlash 2).

    candidates: (D, C) int64 target ids of each position. first: (C,) scores at depth 1 given the
    anchor; pair: (D-1, C, C) scores at depth d + 2, [d, i, j] of candidate j after candidate i of
    the position before. q = softmax(score / T), filters applied, on the candidates. A parent
    outside the candidates has no law: paths are made of candidates.
    """

    candidates: Tensor
    first: Tensor
    pair: Tensor
    sampling: Sampling
    vocab_size: int
    _cache: dict[str, Tensor] = field(factory=dict, init=False, repr=False)

    @property
    def max_depth(self) -> int:  # type: ignore[override]
        return self.candidates.shape[0]

    @property
    def device(self) -> torch.device:
        return self.candidates.device

    def tempered(self, temperature: float) -> "Markov":
        sampling = _at_temperature(self.sampling, temperature)
        return Markov(self.candidates, self.first, self.pair, sampling, self.vocab_size)

    def _law(self, depth: int) -> Tensor:
        """(1 or C, C): laws over the candidates of depth + 1, a row per candidate of depth."""
        name = str(depth)
        if name not in self._cache:
            scores = self.first[None] if depth == 0 else self.pair[depth - 1]
            self._cache[name] = sampling_law(scores, self.sampling)
        return self._cache[name]

    def root(self) -> Frontier:
        return Frontier(0, 1, torch.zeros(1, dtype=torch.long, device=self.candidates.device))

    def expand(self, at: Frontier, k: int) -> Children:
        tokens, law = best(self._law(at.depth)[at.state], k, self.candidates[at.depth])
        return Children(tokens, law.double().log())

    def advance(self, at: Frontier, rows: Tensor, tokens: Tensor) -> Frontier:
        hits = self.candidates[at.depth][None] == tokens.to(self.candidates.device)[:, None]
        return Frontier(at.depth + 1, rows.shape[0], hits.long().argmax(1))

    def law(self, at: Frontier) -> Tensor:
        law = self._law(at.depth)[at.state]
        full = law.new_zeros((at.size, self.vocab_size))
        return full.index_copy(-1, self.candidates[at.depth], law)

    def table(self, k: int) -> Table:
        table = Table([], [], [])
        width = self.candidates.shape[1]
        positions = self.candidates.tolist()
        for depth in range(self.max_depth):
            tokens, law = best(self._law(depth), k, self.candidates[depth])
            # Rows of depth d + 1 start after the root's row and C rows for each depth between.
            start = 1 + width * depth
            index = {token: i for i, token in enumerate(positions[depth])}
            last = depth + 1 == self.max_depth
            for row, log_q in zip(tokens.tolist(), law.double().log().tolist(), strict=True):
                table.tokens.append(row)
                table.log_q.append(log_q)
                table.next_row.append([-1 if last else start + index[t] for t in row])
        return table


def _at_temperature(sampling: Sampling, temperature: float) -> Sampling:
    return Sampling(temperature, sampling.top_k, sampling.top_p, sampling.min_p)
