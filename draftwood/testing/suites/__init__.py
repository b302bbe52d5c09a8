"""Conformance suites: inherit one, name your plugin, and pytest runs what its kind must hold.

    from draftwood.testing.suites import DrafterSuite

    class TestBigram(DrafterSuite):
        plugin = "bigram"
        options = {"depth": 3}

Which tests apply follows from the plugin's traits. Needs the extra `draftwood[testing]`.
"""

from draftwood.testing.suites.controller import BudgetControllerSuite
from draftwood.testing.suites.drafter import DrafterSuite
from draftwood.testing.suites.tree import TreePolicySuite
from draftwood.testing.suites.verifier import VerifierSuite

__all__ = ["BudgetControllerSuite", "DrafterSuite", "TreePolicySuite", "VerifierSuite"]
