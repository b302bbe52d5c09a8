"""Conformance suites: inherit one, name your plugin, and pytest checks the contract of its kind.

    from draftwood.testing.suites import DrafterSuite

    class TestBigram(DrafterSuite):
        plugin = "bigram"
        options = {"depth": 3}

The plugin's traits decide which tests apply. Needs the extra `draftwood[testing]`.
"""

from draftwood.testing.suites.controller import BudgetControllerSuite
from draftwood.testing.suites.drafter import DrafterSuite
from draftwood.testing.suites.tree import TreePolicySuite
from draftwood.testing.suites.verifier import VerifierSuite

__all__ = ["BudgetControllerSuite", "DrafterSuite", "TreePolicySuite", "VerifierSuite"]
