"""The drafters that pay a pass per level hold what every drafter must."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from draftwood.core.hf import load_target
from draftwood.core.interfaces import Target
from draftwood.testing.suites import DrafterSuite

FIXTURES = Path(__file__).parents[2] / "fixtures"


@cache
def shared_target() -> Target:
    return load_target(FIXTURES / "zlab/target", device="cpu", dtype="float32")


class OnTheFixture(DrafterSuite):
    def target(self) -> Target:
        return shared_target()


class TestEagle3(OnTheFixture):
    plugin = "eagle3"
    options = {"checkpoint": FIXTURES / "speculators/eagle3", "max_depth": 3}  # noqa: RUF012


class TestDraftModel(OnTheFixture):
    plugin = "draft_model"
    options = {"model": FIXTURES / "zlab/target", "max_depth": 3}  # noqa: RUF012


class ForgetsForks(TestEagle3):
    """A session whose forks share its cache."""

    __test__ = False

    def build(self) -> Any:
        drafter = super().build()
        real = drafter.open

        def open_(*arguments: Any) -> Any:
            session = real(*arguments)
            session.fork = lambda: session
            return session

        drafter.open = open_
        return drafter


def test_the_suite_refuses_a_fork_that_is_no_copy() -> None:
    """Negative control."""
    with pytest.raises(AssertionError):
        ForgetsForks().test_a_fork_goes_on_by_itself()
