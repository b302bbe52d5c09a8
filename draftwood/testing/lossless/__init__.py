"""Whether one pipeline keeps its target's output, on the user's own model.

`draftwood lossless` shows three kinds of evidence. *Exact*: the pipeline's own tree, controller and
verifier with a toy drafter of the same form, enumerated. *Parity*: greedy text beside plain
decoding's. *Distribution*: sampled text against the target's own conditional distributions.
"""

from draftwood.testing.lossless.distribution import (
    SMALLEST_BIAS,
    DistributionEvidence,
    check_distribution,
)
from draftwood.testing.lossless.exact import (
    ExactEvidence,
    check_exact,
    parts,
    repeat_case,
    toy_arguments,
)
from draftwood.testing.lossless.parity import ParityEvidence, check_parity
from draftwood.testing.lossless.report import Report
from draftwood.testing.lossless.speculation import Speculation

__all__ = [
    "SMALLEST_BIAS",
    "DistributionEvidence",
    "ExactEvidence",
    "ParityEvidence",
    "Report",
    "Speculation",
    "check_distribution",
    "check_exact",
    "check_parity",
    "parts",
    "repeat_case",
    "toy_arguments",
]
