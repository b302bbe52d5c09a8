"""Options of several plugins, by the plugins' names: what a plugin made of plugins takes."""

from collections.abc import Mapping
from typing import Any, ClassVar

from draftwood.core.registry.plugin import Kind
from draftwood.core.registry.registry import Registered


class PluginOptions(dict[str, Any]):
    """Maps the names of installed plugins of one kind to their options.

    An options class has at most one field of such a type, with an empty default. In YAML the names
    stand beside the class's other options, and each mapping is read like that of a pipeline's own
    plugin. A plugin whose options have such a field cannot be named: plugins do not nest further.

    Args:
        entries: The plugins by name.
        options: An instance of each plugin's options class, by the same names.

    Attributes:
        kind: Kind of the plugins; subclasses set it.
        entries: The plugins by name.
    """

    kind: ClassVar[Kind]

    def __init__(
        self,
        entries: Mapping[str, Registered] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(options or {})
        self.entries = dict(entries or {})

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.items()))


class DrafterOptions(PluginOptions):
    """Options of drafters, by name."""

    kind = Kind.DRAFTER
