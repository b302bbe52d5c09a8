"""The public testing kit: exact laws by enumeration, and models whose laws are known."""

from draftwood.testing.enumeration import Enumerating, outcomes
from draftwood.testing.exact import assert_lossless, exact_law, target_law, total_variation
from draftwood.testing.oracle import OracleDrafter, OracleTarget, ScriptedClock, ScriptedCosts
from draftwood.testing.proposals import Autoregressive

__all__ = [
    "Autoregressive",
    "Enumerating",
    "OracleDrafter",
    "OracleTarget",
    "ScriptedClock",
    "ScriptedCosts",
    "assert_lossless",
    "exact_law",
    "outcomes",
    "target_law",
    "total_variation",
]
