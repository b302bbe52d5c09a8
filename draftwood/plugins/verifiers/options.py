"""Options of the bundled verifiers."""

from attrs import frozen


@frozen
class MatchOptions:
    """`match` has no options: the rule is exact for every tree."""
