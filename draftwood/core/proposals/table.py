"""Tables: a whole proposal on the host, row by row, for the best-first search."""

from collections.abc import Callable, Sequence
from functools import cache

from attrs import define

Path = tuple[int, ...]

Following = Callable[[Path], Sequence[tuple[int, float]]]
"""Maps a path to the (token, log q) pairs of its next tokens, most likely first."""


@define(eq=False)
class Row:
    """One conditional distribution.

    Attributes:
        tokens: Target ids, most likely first, equal ones by token id.
        log_q: Log-probability of each token.
        next_rows: Row number of the distribution after each token, -1 where the proposal ends.
    """

    tokens: Sequence[int]
    log_q: Sequence[float]
    next_rows: Sequence[int]


@define(eq=False)
class Table:
    """The distributions of a proposal.

    Attributes:
        row: Gives the row of a number: 0 for the distribution after the anchor, others as in
            `next_rows`. It is a field, not a method, because the search calls it for every node.
    """

    row: Callable[[int], Row]

    @classmethod
    def lazy(cls, make_row: Callable[[int], Row]) -> "Table":
        """A table whose rows are made once, when they are first read: a search reads few.

        Args:
            make_row: Called for row 0, and for rows in the `next_rows` of rows made before.
        """
        return cls(cache(make_row))


def path_table(following: Following, depth: int, k: int) -> Table:
    """A table of distributions that depend on the whole path.

    Args:
        following: The next tokens of a path. Called for a path only after the path without its
            last token, and never for paths of `depth` tokens.
        depth: Most tokens of a path.
        k: Most tokens of a row.
    """
    parents: list[Path] = [()]  # of each numbered row: its path without the last token
    last_tokens = [-1]

    def make_row(index: int) -> Row:
        path = (*parents[index], last_tokens[index]) if index else ()
        candidates = following(path)[:k] if len(path) < depth else ()
        tokens = [token for token, _ in candidates]
        first = len(parents)
        parents.extend([path] * len(tokens))
        last_tokens.extend(tokens)
        return Row(tokens, [log_q for _, log_q in candidates], range(first, len(parents)))

    return Table.lazy(make_row)
