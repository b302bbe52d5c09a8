"""The mixture of a union on the host, over the tokens that its sources list."""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

from attrs import define, field, frozen

from draftwood.core.proposals import LookupProposal, Path, Proposal, Table
from draftwood.plugins.drafters.union.source_weights import posterior_weights

LISTED_TOKENS = 24
"""Most tokens that a source with distributions lists after one path."""

UNLISTED_PROBABILITY = 1e-6
"""Probability of each token that a source with distributions does not list, so that a path through
one keeps a weight for this source."""


@frozen
class SourceDistribution:
    """The distribution of one source after a path.

    Attributes:
        probs: Probability of each listed token; empty where the source has no distribution.
        unlisted: Probability of each other token.
        row: Row of the source's table.
    """

    probs: dict[int, float]
    unlisted: float
    row: int = 0

    @cached_property
    def ranked(self) -> list[tuple[int, float]]:
        """(token, log probability) of listed tokens, most likely first, equal ones by token id."""
        return _ranked(self.probs)

    def prob(self, token: int) -> float:
        """Probability of a token."""
        return self.probs.get(token, self.unlisted)


class ListedSource(Protocol):
    """A source whose distributions are listed on the host, path by path."""

    def root(self) -> SourceDistribution | None:
        """The distribution after the anchor; None beyond the source's depth."""

    def after(self, parent: SourceDistribution, path: Path) -> SourceDistribution | None:
        """The distribution after `path`; `parent` is that before its last token."""


@define
class LookupSource:
    """A look-up as a source: every path of a tree is a context."""

    proposal: LookupProposal
    vocab_size: int

    def root(self) -> SourceDistribution | None:
        return self._distribution(())

    def after(self, parent: SourceDistribution, path: Path) -> SourceDistribution | None:
        return self._distribution(path)

    def _distribution(self, path: Path) -> SourceDistribution | None:
        if len(path) >= self.proposal.max_depth:
            return None
        named = {token: math.exp(log_q) for token, log_q in self.proposal.following(path)}
        # All tokens share the remaining mass, as in `UnionProposal`. A context without followers
        # does not end the source: the next token may lead to one that has some.
        share = max(0.0, 1.0 - sum(named.values())) / self.vocab_size
        return SourceDistribution({token: p + share for token, p in named.items()}, share)


@define
class TableSource:
    """A proposal with a table as a source.

    A token that is not listed leads to the row of the listed ones if they all lead to one row: the
    distribution then depends on the depth alone.
    """

    table: Table
    _distributions: dict[int, SourceDistribution] = field(factory=dict, init=False)

    def root(self) -> SourceDistribution | None:
        return self._distribution(0)

    def after(self, parent: SourceDistribution, path: Path) -> SourceDistribution | None:
        row = self.table.row(parent.row)
        if len(set(row.next_rows)) == 1:
            return self._distribution(row.next_rows[0])
        if path[-1] not in row.tokens:
            return None
        return self._distribution(row.next_rows[row.tokens.index(path[-1])])

    def _distribution(self, index: int) -> SourceDistribution | None:
        if index < 0:
            return None
        if index not in self._distributions:
            row = self.table.row(index)
            pairs = zip(row.tokens, row.log_q, strict=True)
            probs = {token: math.exp(log_q) for token, log_q in pairs if log_q > -math.inf}
            self._distributions[index] = SourceDistribution(probs, UNLISTED_PROBABILITY, index)
        return self._distributions[index]


def listed_source(proposal: Proposal, vocab_size: int) -> ListedSource | None:
    """A proposal as a source on the host; None where it has neither look-ups nor a table."""
    if isinstance(proposal, LookupProposal):
        return LookupSource(proposal, vocab_size)
    table = proposal.table(LISTED_TOKENS)
    return None if table is None else TableSource(table)


def _ranked(probs: dict[int, float]) -> list[tuple[int, float]]:
    ordered = sorted(probs.items(), key=lambda pair: (-pair[1], pair[0]))
    return [(token, math.log(p)) for token, p in ordered if p > 0.0]


@define(eq=False)
class HostMixture:
    """Mixes listed sources along paths, as `UnionProposal` does with whole distributions.

    Attributes:
        sources: The sources.
        weights: Their weights at the root.
    """

    sources: Sequence[ListedSource]
    weights: Sequence[float]
    _states: dict[Path, tuple[Sequence[float], list[SourceDistribution | None]]] = field(
        factory=dict, init=False
    )

    def following(self, path: Path) -> list[tuple[int, float]]:
        """(token, log probability) of every token that a source lists after `path`, ranked."""
        weights, distributions = self._state(path)
        active = [(w, d) for w, d in zip(weights, distributions, strict=True) if d and d.probs]
        if len(active) < 2:
            return active[0][1].ranked if active else []
        total = sum(weight for weight, _ in active)
        unlisted = sum(weight * source.unlisted for weight, source in active) / total
        mixed: dict[int, float] = {}
        for weight, source in active:
            share = weight / total
            for token, p in source.probs.items():
                mixed[token] = mixed.get(token, unlisted) + share * (p - source.unlisted)
        return _ranked(mixed)

    def _state(self, path: Path) -> tuple[Sequence[float], list[SourceDistribution | None]]:
        """The sources' weights and distributions after a path."""
        if path not in self._states:
            if not path:
                self._states[path] = (self.weights, [source.root() for source in self.sources])
            else:
                weights, parents = self._state(path[:-1])
                weights = posterior_weights(
                    weights,
                    [d.prob(path[-1]) if d else 0.0 for d in parents],
                    [1.0 if d and d.probs else 0.0 for d in parents],
                )
                pairs = zip(self.sources, parents, strict=True)
                distributions = [d and source.after(d, path) for source, d in pairs]
                self._states[path] = (weights, distributions)
        return self._states[path]
