"""The mixture of a union on the host, over the tokens that its sources list: no tensor a node."""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

from attrs import define, field, frozen

from draftwood.core.proposals import LookupProposal, Table

LISTED = 24
"""Most tokens that a source with distributions puts forward after one path."""

UNLISTED = 1e-6
"""Chance that a source is held to give a token that it does not list: a path that leaves what it
lists must not end its say for good, if it has distributions there at all."""

Path = tuple[int, ...]


@frozen
class Said:
    """What one source says after a path. chances: of the tokens it lists. rest: of any other.
    place: where it is, in its own terms."""

    chances: dict[int, float]
    rest: float
    place: int = 0

    @cached_property
    def ranked(self) -> list[tuple[int, float]]:
        """(token, log chance) of the listed ones, best first, equal ones by token id."""
        return _ranked(self.chances)


class Listing(Protocol):
    """One source, asked path by path."""

    def root(self) -> Said | None:
        """Before any token; None if it is silent."""
        ...

    def after(self, before: Said, path: Path) -> Said | None:
        """After a path, `before` being what it said before the last token of it."""
        ...


@define
class Guessed:
    """A source that guesses: whatever path a tree comes by is a context to it."""

    source: LookupProposal
    vocab_size: int

    def root(self) -> Said | None:
        return self._said(())

    def after(self, before: Said, path: Path) -> Said | None:
        return self._said(path)

    def _said(self, path: Path) -> Said | None:
        if len(path) >= self.source.max_depth:
            return None
        named = {token: math.exp(log_q) for token, log_q in self.source.following(path)}
        # All tokens share what it leaves, as `UnionProposal` has it. Silent here is not silent
        # below: the next token may be one that it knows.
        each = max(0.0, 1.0 - sum(named.values())) / self.vocab_size
        return Said({token: chance + each for token, chance in named.items()}, each)


@define
class Tabled:
    """A source with few distinct distributions. A token that it does not list leads where the
    listed ones do, if all lead to one place: its distribution then depends on the depth alone."""

    table: Table
    _rows: dict[int, Said | None] = field(factory=dict, init=False)

    def root(self) -> Said | None:
        return self._said(0)

    def after(self, before: Said, path: Path) -> Said | None:
        known = self.table.row(before.place)
        tokens, rows = known.tokens, known.next_rows
        if len(set(rows)) == 1:
            return self._said(rows[0])
        return self._said(rows[tokens.index(path[-1])]) if path[-1] in tokens else None

    def _said(self, row: int) -> Said | None:
        if row not in self._rows:
            self._rows[row] = None
            if row >= 0:
                pairs = zip(self.table.row(row).tokens, self.table.row(row).log_q, strict=True)
                chances = {token: math.exp(log_q) for token, log_q in pairs if log_q > -math.inf}
                self._rows[row] = Said(chances, UNLISTED, row)
        return self._rows[row]


def _ranked(chances: dict[int, float]) -> list[tuple[int, float]]:
    ordered = sorted(chances.items(), key=lambda pair: (-pair[1], pair[0]))
    return [(token, math.log(chance)) for token, chance in ordered if chance > 0.0]


@define(eq=False)
class HostMixture:
    """Mixes sources along paths, as `UnionProposal` does with whole distributions.

    weights: of the sources before any token.
    """

    sources: Sequence[Listing]
    weights: Sequence[float]
    _states: dict[Path, tuple[list[float], list[Said | None]]] = field(factory=dict, init=False)

    def following(self, path: Path) -> list[tuple[int, float]]:
        """(token, log chance) of every token that a source lists after `path`, best first."""
        weights, said = self._state(path)
        speaking = [(w, s) for w, s in zip(weights, said, strict=True) if s and s.chances]
        if len(speaking) < 2:
            return speaking[0][1].ranked if speaking else []
        total = sum(weight for weight, _ in speaking)
        rest = sum(weight * one.rest for weight, one in speaking) / total
        mixed: dict[int, float] = {}
        for weight, one in speaking:
            share = weight / total
            for token, chance in one.chances.items():
                mixed[token] = mixed.get(token, rest) + share * (chance - one.rest)
        return _ranked(mixed)

    def _state(self, path: Path) -> tuple[list[float], list[Said | None]]:
        """The sources' weights after a path, and what each says there."""
        if path not in self._states:
            if path:
                self._states[path] = self._after(*self._state(path[:-1]), path)
            else:
                self._states[path] = (list(self.weights), [s.root() for s in self.sources])
        return self._states[path]

    def _after(
        self, weights: list[float], said: list[Said | None], path: Path
    ) -> tuple[list[float], list[Said | None]]:
        """One more token: those that gave it more chance weigh more, silent ones as before."""
        token = path[-1]
        given = [s.chances.get(token, s.rest) if s and s.chances else None for s in said]
        spoke = [(w, g) for w, g in zip(weights, given, strict=True) if g is not None]
        mean = sum(w * g for w, g in spoke) / sum(w for w, _ in spoke)
        raw = [w * (mean if g is None else g) for w, g in zip(weights, given, strict=True)]
        following = [
            None if s is None else source.after(s, path)
            for source, s in zip(self.sources, said, strict=True)
        ]
        return [weight / sum(raw) for weight in raw], following
