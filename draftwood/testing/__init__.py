"""The public testing kit: exact distributions by enumeration, and models of known distributions.

This module needs no more than draftwood itself. `draftwood.testing.suites` and
`draftwood.testing.strategies` need the extra `draftwood[testing]`.
"""

from draftwood.testing.controllers import AdversarialController
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
from draftwood.testing.proposals import AutoregressiveProposal
from draftwood.testing.toy_pipelines import ToyPipeline
from draftwood.testing.toys import RepetitionPenalty, toy_drafter, toy_proposal, toy_target

__all__ = [
    "AdversarialController",
    "AutoregressiveProposal",
    "Comparison",
    "Enumerating",
    "OracleDrafter",
    "OracleTarget",
    "RepetitionPenalty",
    "ScriptedClock",
    "ScriptedCosts",
    "ToyPipeline",
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
