"""The base of all suites: the plugin under test, and a search for the smallest failure."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from draftwood.core.registry.loader import installed
from draftwood.core.registry.plugin import Kind, Plugin
from draftwood.core.registry.registry import PluginSource, Registered

T = TypeVar("T")


class Suite:
    """One plugin under test.

    Attributes:
        plugin: Name of an installed plugin, or its record.
        options: Its YAML options.
        examples: How many cases each search tries; they are the same in every run.
    """

    kind: ClassVar[Kind]
    plugin: ClassVar[str | Plugin]
    options: ClassVar[Mapping[str, Any]] = {}
    examples: ClassVar[int] = 10

    @property
    def entry(self) -> Registered:
        if isinstance(self.plugin, Plugin):
            return Registered(self.kind, self.plugin, PluginSource("under test", "0", "test"))
        return installed().get(self.kind, self.plugin)

    @property
    def traits(self) -> Any:
        return self.entry.traits(self.entry.plugin.options(**self.options))

    def build(self) -> Any:
        """A fresh object of the plugin."""
        return self.entry.build(self.entry.plugin.options(**self.options))

    def search(self, strategy: st.SearchStrategy[T], check: Callable[[T], None]) -> None:
        """Call `check` with cases of `strategy`, and shrink a failure to the smallest case.

        No case is tried twice, since shrinking returns to the same ones.
        """
        failures: dict[T, AssertionError | None] = {}

        @settings(
            max_examples=self.examples,
            derandomize=True,
            database=None,
            deadline=None,
            report_multiple_bugs=False,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        @given(strategy)
        def run(case: T) -> None:
            if case not in failures:
                try:
                    check(case)
                    failures[case] = None
                except AssertionError as error:
                    failures[case] = error
            failure = failures[case]
            if failure is not None:
                raise failure

        run()
