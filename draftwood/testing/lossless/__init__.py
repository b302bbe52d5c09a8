"""Whether one pipeline keeps its target's output, on the user's own model: what
`draftwood lossless` shows.

Three kinds of evidence. *Exact*: the pipeline's own tree, controller and verifier with a toy
drafter of the same form of distribution, enumerated. *Parity*: greedy text beside plain decoding's.
*Distribution*: sampled text against the target's own conditionals."""

from draftwood.testing.lossless.distribution import SMALLEST_BIAS, Distribution, check_distribution
from draftwood.testing.lossless.exact import Exact, check_exact
from draftwood.testing.lossless.parity import Parity, check_parity
from draftwood.testing.lossless.report import Report, Speculation

__all__ = [
    "SMALLEST_BIAS",
    "Distribution",
    "Exact",
    "Parity",
    "Report",
    "Speculation",
    "check_distribution",
    "check_exact",
    "check_parity",
]
