"""Bundled plugins pass the conformance suites, and wrong ones fail them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve, fields

from draftwood.core.draws import Draws
from draftwood.core.errors import TestingError
from draftwood.core.interfaces import Target
from draftwood.core.options import Sampling
from draftwood.core.proposals import Proposal
from draftwood.core.registry.plugin import ControllerTraits, Plugin, TreeTraits, VerifierTraits
from draftwood.plugins.controllers.options import FixedOptions
from draftwood.plugins.trees.options import SampledOptions
from draftwood.plugins.verifiers.options import MatchOptions
from draftwood.testing import OracleDrafter, toy_proposal
from draftwood.testing.suites import (
    BudgetControllerSuite,
    DrafterSuite,
    TreePolicySuite,
    VerifierSuite,
)

ZLAB = Path(__file__).parents[1] / "fixtures" / "zlab"


class TestMatch(VerifierSuite):
    plugin = "match"


class TestRatio(VerifierSuite):
    plugin = "ratio"


class TestMultiRound(VerifierSuite):
    plugin = "multi_round"


class TestTraversal(VerifierSuite):
    plugin = "traversal"


class TestChain(TreePolicySuite):
    plugin = "chain"


class TestStatic(TreePolicySuite):
    plugin = "static"


class TestBestFirst(TreePolicySuite):
    plugin = "best_first"


class TestGrownByLevel(TreePolicySuite):
    plugin = "best_first"
    options = {"form": "by_level"}  # noqa: RUF012


class TestSampledChain(TreePolicySuite):
    plugin = "sampled"


class TestSampledWithout(TreePolicySuite):
    plugin = "sampled"
    options = {"widths": (2, 1)}  # noqa: RUF012


class TestSampledIid(TreePolicySuite):
    plugin = "sampled"
    options = {"widths": (2, 1), "replacement": True}  # noqa: RUF012


class TestFixed(BudgetControllerSuite):
    plugin = "fixed"
    options = {"nodes": 3}  # noqa: RUF012


class TestRoofline(BudgetControllerSuite):
    plugin = "roofline"


class TestNgram(DrafterSuite):
    plugin = "ngram"


class TestDFlash(DrafterSuite):
    plugin = "dflash"
    options = {"checkpoint": ZLAB / "dflash"}  # noqa: RUF012

    def target(self) -> Target:
        from draftwood.core.hf import load_target

        return load_target(ZLAB / "target", device="cpu", dtype="float32")


def _verifier(fault: str) -> Plugin:
    return Plugin(
        "wrong",
        "wrong",
        MatchOptions,
        f"properties.faults:{fault}",
        lambda options: VerifierTraits(frozenset(Draws), seed_parity=True),
    )


def _policy(fault: str) -> Plugin:
    return Plugin(
        "wrong",
        "wrong",
        SampledOptions,
        f"properties.faults:{fault}",
        lambda options: TreeTraits(options.draws),
    )


class WrongVerifier(VerifierSuite):
    plugin = _verifier("ArgmaxAcceptance")


class WrongPolicy(TreePolicySuite):
    plugin = _policy("CutByScore")


class WrongDistributions(TreePolicySuite):
    plugin = _policy("NotRenormalised")
    options = {"widths": (2, 1)}  # noqa: RUF012


class WrongBudget(BudgetControllerSuite):
    plugin = Plugin(
        "wrong",
        "wrong",
        FixedOptions,
        "properties.faults:OneTooMany",
        lambda options: ControllerTraits(),
    )


class WrongQ(DrafterSuite):
    plugin = "ngram"

    def build(self) -> Any:
        from properties import faults

        return faults.ForgetsItsTemperature()

    @property
    def traits(self) -> Any:
        from draftwood.core.registry.plugin import DrafterTraits

        return DrafterTraits("factorized", 2)


class WrongDeep(VerifierSuite):
    plugin = evolve(_verifier("X"), factory="properties.depth_faults:DeepBonus")


class WrongWide(VerifierSuite):
    plugin = evolve(_verifier("X"), factory="properties.depth_faults:ManyChildren")


class WrongTree(TreePolicySuite):
    plugin = evolve(_policy("X"), factory="properties.depth_faults:DropsDeepUnlikely")


class WrongKeys(VerifierSuite):
    plugin = Plugin(
        "wrong",
        "wrong",
        MatchOptions,
        "properties.depth_faults:WrappedKeys",
        lambda options: VerifierTraits(frozenset({Draws.CHAIN, Draws.WITHOUT_REPLACEMENT})),
    )


class WrongFork(WrongQ):
    def build(self) -> Any:
        from properties import depth_faults

        return depth_faults.SharesCommitted(
            lambda prefix, sampling: toy_proposal("factorized", prefix, sampling)
        )


class WrongExpansion(WrongQ):
    def build(self) -> Any:
        from properties import depth_faults

        def propose(prefix: tuple[int, ...], sampling: Sampling) -> Proposal:
            right = toy_proposal("factorized", prefix, sampling)
            return depth_faults.WrongBelowTheRoot(
                *(getattr(right, each.name) for each in fields(type(right)) if each.init)
            )

        return OracleDrafter(propose)


@pytest.mark.covers("shallow-certificate")
@pytest.mark.parametrize(
    "test",
    [
        lambda: WrongDeep().test_the_output_distribution_is_the_targets_in_extreme_shapes(
            Draws.DETERMINISTIC
        ),
        lambda: WrongWide().test_the_output_distribution_is_the_targets_in_extreme_shapes(
            Draws.DETERMINISTIC
        ),
        WrongTree().test_the_output_distribution_is_the_targets_in_extreme_shapes,
        WrongKeys().test_no_random_number_is_drawn_twice_in_a_long_text,
        WrongFork().test_the_original_session_does_not_change_a_fork,
        WrongExpansion().test_expanded_tokens_are_the_most_probable_ones,
    ],
)
def test_a_plugin_that_is_wrong_deep_or_late_fails(test: Callable[[], None]) -> None:
    with pytest.raises((AssertionError, TestingError)):
        test()


@pytest.mark.parametrize(
    "test",
    [
        WrongVerifier().test_the_output_distribution_is_the_targets,
        WrongVerifier().test_seed_parity_gives_plain_decodings_tokens,
        WrongPolicy().test_the_output_distribution_is_the_targets,
        WrongDistributions().test_drawn_nodes_carry_the_distribution_they_were_drawn_from,
        WrongBudget().test_decisions_are_within_their_limits_and_pure,
        lambda: WrongQ().test_distributions_are_distributions_over_the_targets_vocabulary(0.0),
        WrongQ().test_filters_limit_the_distribution,
        WrongQ().test_proposals_are_of_the_declared_form,
    ],
)
def test_a_wrong_plugin_fails(test: Callable[[], None]) -> None:
    with pytest.raises(AssertionError):
        test()


def test_a_biased_verifier_fails_with_the_smallest_pipeline_that_shows_it() -> None:
    with pytest.raises(AssertionError) as error:
        WrongVerifier().test_the_output_distribution_is_the_targets()
    message = str(error.value)
    assert "the first wrong prefix is [0, 1] + [" in message
    assert "where the target gives" in message
    assert "pipeline: ToyPipeline(drafter='factorized', tree='chain', verifier='match'" in message
    assert "ArgmaxAcceptance" in message
