"""Options of the bundled verifiers. The rules themselves have none."""

from typing import Literal

from attrs import frozen

DeviceRule = Literal["match", "ratio", "multi_round"]
"""Rules that the verifier `triton` has kernels for."""


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
    """Options of `triton`.

    Attributes:
        rule: The verifier whose decisions it makes: match, ratio or multi_round.
    """

    rule: DeviceRule = "match"


@frozen
class AutoOptions:
    """Options of `auto`.

    Attributes:
        rule: match, ratio or multi_round; on the device where Triton kernels run, else on the host.
    """

    rule: DeviceRule = "match"
