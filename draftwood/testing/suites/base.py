"""What all suites share: the plugin under test, and a search that ends in a small example."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from draftwood.core.config.compose import traits_of
from draftwood.core.registry.loader import installed
from draftwood.core.registry.plugin import Kind, Plugin
from draftwood.core.registry.registry import Registered, Source

T = TypeVar("T")


class Suite:
    """plugin: the name of an installed plugin, or its record. options: of its YAML options.
    examples: how many cases each search tries, the same ones in every run."""

    kind: ClassVar[Kind]
    plugin: ClassVar[str | Plugin]
    options: ClassVar[Mapping[str, Any]] = {}
    examples: ClassVar[int] = 10

    @property
    def entry(self) -> Registered:
        if isinstance(self.plugin, Plugin):
            return Registered(self.kind, self.plugin, Source("under test", "0", "test"))
        return installed().get(self.kind, self.plugin)

    @property
    def traits(self) -> Any:
        return traits_of(self.entry, self._options())

    def build(self) -> Any:
        """A fresh object of the plugin."""
        return self.entry.build(self._options())

    def search(self, strategy: st.SearchStrategy[T], check: Callable[[T], None]) -> None:
        """Call `check` with what `strategy` draws; a failure is shrunk to the smallest case.

        A case that was tried before is not tried again: shrinking comes back to the same ones.
        """
        failed: dict[T, AssertionError | None] = {}

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
            if case not in failed:
                try:
                    check(case)
                    failed[case] = None
                except AssertionError as error:
                    failed[case] = error
            known = failed[case]
            if known is not None:
                raise known

        run()

    def _options(self) -> Any:
        return self.entry.plugin.options(**self.options)
