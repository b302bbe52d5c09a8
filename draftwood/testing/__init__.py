"""The public testing kit: exact distributions by enumeration, and models whose distributions are
known.

What is here needs no more than draftwood itself. `draftwood.testing.suites` and
`draftwood.testing.strategies` need the extra `draftwood[testing]`.
"""

from draftwood.testing.cells import Cell
from draftwood.testing.enumeration import Enumerating, outcomes
from draftwood.testing.exact import (
    Comparison,
    assert_lossless,
    compare,
    exact_distribution,
    target_distribution,
    total_variation,
)
from draftwood.testing.oracle import OracleDrafter, OracleTarget, ScriptedClock, ScriptedCosts
from draftwood.testing.proposals import Autoregressive
from draftwood.testing.toys import (
    Adversary,
    RepetitionPenalty,
    toy_drafter,
    toy_proposal,
    toy_target,
)

__all__ = [
    "Adversary",
    "Autoregressive",
    "Cell",
    "Comparison",
    "Enumerating",
    "OracleDrafter",
    "OracleTarget",
    "RepetitionPenalty",
    "ScriptedClock",
    "ScriptedCosts",
    "assert_lossless",
    "compare",
    "exact_distribution",
    "outcomes",
    "target_distribution",
    "total_variation",
    "toy_drafter",
    "toy_proposal",
    "toy_target",
]
