"""Options of the bundled verifiers: none has any, since each rule is fixed by what it proves."""

from attrs import frozen


@frozen
class MatchOptions:
    """`match` has no options: the rule is exact for every tree."""


@frozen
class RatioOptions:
    """`ratio` has no options."""


@frozen
class MultiRoundOptions:
    """`multi_round` has no options."""


@frozen
class TraversalOptions:
    """`traversal` has no options."""
