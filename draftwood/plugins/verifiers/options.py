"""Options of the bundled verifiers. A rule has none, since it is fixed by what it proves."""

from typing import Literal

from attrs import frozen

DeviceRule = Literal["match", "ratio", "multi_round"]
"""Rules that the `triton` verifier has kernels for."""


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


@frozen
class TritonOptions:
    """rule: match, ratio or multi_round; it decides as the verifier of that name does."""

    rule: DeviceRule = "match"


@frozen
class AutoOptions:
    """rule: match, ratio or multi_round, on the device where its kernels run, else on the host."""

    rule: DeviceRule = "match"
