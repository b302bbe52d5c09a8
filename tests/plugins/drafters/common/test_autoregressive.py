"""Autoregressive drafters pass the conformance suite of drafters."""

from functools import cache
from pathlib import Path

import pytest

from draftwood.core.hf import load_target
from draftwood.core.interfaces import Drafter, Target
from draftwood.core.options import Sampling
from draftwood.plugins.drafters.eagle3.drafter import Eagle3, Eagle3Session
from draftwood.plugins.drafters.options import Eagle3Options
from draftwood.testing.suites import DrafterSuite

FIXTURES = Path(__file__).parents[3] / "fixtures"


@cache
def shared_target() -> Target:
    return load_target(FIXTURES / "zlab/target", device="cpu", dtype="float32")


class FixtureSuite(DrafterSuite):
    def target(self) -> Target:
        return shared_target()


class TestEagle3(FixtureSuite):
    plugin = "eagle3"
    options = {"checkpoint": FIXTURES / "speculators/eagle3", "max_depth": 3}  # noqa: RUF012


class TestDraftModel(FixtureSuite):
    plugin = "draft_model"
    options = {"model": FIXTURES / "zlab/target", "max_depth": 3}  # noqa: RUF012


class SharedForks(Eagle3):
    """A drafter whose forked sessions share their state with the original."""

    def open(self, target: Target, sampling: Sampling) -> Eagle3Session:
        session = super().open(target, sampling)
        session.fork = lambda: session  # type: ignore[method-assign]
        return session


class SharedForksSuite(TestEagle3):
    __test__ = False

    def build(self) -> Drafter:
        return SharedForks(Eagle3Options(**self.options))


def test_suite_rejects_forks_that_share_state() -> None:
    """Negative control."""
    with pytest.raises(AssertionError):
        SharedForksSuite().test_a_fork_does_not_change_the_original_session()
