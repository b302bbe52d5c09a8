"""What the loader found: plugins by kind and name, their distributions, and what is broken."""

from collections import Counter
from collections.abc import Callable, Iterable
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from draftwood.core.errors import DraftwoodError, PluginError
from draftwood.core.registry.plugin import TRAITS, Kind, Plugin, TrainablePlugin, Traits
from draftwood.core.renames import renamed_method
from draftwood.core.suggestions import did_you_mean

if TYPE_CHECKING:
    import click

    from draftwood.core.values import RoundStats

TRAINABLE = "trainable"
"""Kind of a `TrainablePlugin`, which is no part of a pipeline."""


@frozen
class PluginSource:
    """The distribution that registers a plugin.

    Attributes:
        distribution: Its name.
        version: Its version.
        entry_point: Name of the entry point; of a bundled plugin the registration module.
        bundled: Whether it is draftwood itself.
    """

    distribution: str
    version: str
    entry_point: str
    bundled: bool = False

    def __str__(self) -> str:
        return f"'{self.distribution} {self.version}'"


@frozen
class Registered:
    """A plugin and the distribution that registers it.

    Attributes:
        kind: A `Kind`, or "trainable".
        plugin: The record; a `TrainablePlugin` exactly if the kind is "trainable".
        source: The distribution.
    """

    kind: Kind | str
    plugin: Plugin | TrainablePlugin
    source: PluginSource

    def __str__(self) -> str:
        return f"{self.kind} {self.plugin.name!r} of {self.source}"

    def traits(self, options: Any) -> Any:
        """The plugin's traits for its options.

        Raises:
            PluginError: The plugin fails or returns something else; the message names its
                distribution. A DraftwoodError, such as an unreadable checkpoint, passes through.
        """
        assert isinstance(self.plugin, Plugin)
        try:
            traits: Traits = self.plugin.traits(options)
        except DraftwoodError:
            raise
        except Exception as error:
            raise PluginError(f"{self} failed to give its traits ({cause_of(error)})") from error
        expected = TRAITS[Kind(self.kind)]
        if not isinstance(traits, expected):
            message = f"{self} gave {type(traits).__name__} as traits, not {expected.__name__}"
            raise PluginError(message)
        return traits

    def load_factory(self) -> Callable[..., Any]:
        """Import the factory.

        Raises:
            PluginError: The import fails or the path names nothing; the message names the
                distribution.
        """
        module, _, attribute = self.plugin.factory.partition(":")
        try:
            factory: Callable[..., Any] = attrgetter(attribute)(import_module(module))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise PluginError(
                f"{self} cannot be loaded from {self.plugin.factory} ({cause_of(error)})"
            ) from error
        return factory

    def build(self, *arguments: Any) -> Any:
        """Import the factory and call it; what it raises passes through.

        Args:
            arguments: The options; of a trainable, what `TrainablePlugin.factory` takes.

        Raises:
            PluginError: The factory cannot be imported, or its class defines a method under a
                name that has changed; the message names the distribution.
        """
        built = self.load_factory()(*arguments)
        if renamed := renamed_method(type(built)):
            raise PluginError(f"{self} was written for an older draftwood: {renamed}")
        return built


@frozen
class PluginRecord:
    """One line of `draftwood plugins list`.

    Attributes:
        kind: drafter, tree, controller, verifier, trainable, command or observer; None for an
            entry point that failed as a whole or is off.
        name: The plugin's name, else the entry point's.
        distribution: Name of the distribution.
        version: Version of the distribution.
        status: "ok", "failed", "duplicate" or "off".
        cause: Why the status is not "ok".
    """

    kind: str | None
    name: str
    distribution: str
    version: str
    status: str
    cause: str | None = None

    @classmethod
    def of(
        cls,
        kind: str | None,
        name: str,
        source: PluginSource,
        status: str = "ok",
        cause: str | None = None,
    ) -> "PluginRecord":
        """The record of one plugin, command, observer or entry point of a distribution."""
        kind = None if kind is None else str(kind)
        return cls(kind, name, source.distribution, source.version, status, cause)

    @classmethod
    def failed(
        cls, kind: str | None, name: str, source: PluginSource, cause: str
    ) -> "PluginRecord":
        """The record of what a distribution failed to provide."""
        return cls.of(kind, name, source, "failed", cause)

    def __str__(self) -> str:
        state = f"is off: {self.cause}"
        if self.status != "off":
            state = f"failed to load ({self.cause}); see `draftwood plugins list`"
        return f"'{self.distribution} {self.version}' {state}"

    @property
    def broken(self) -> bool:
        return self.status in ("failed", "duplicate")


@frozen
class Refusal:
    """Why a name gives no plugin: what is wrong, then the choices and the next step."""

    message: str
    hints: tuple[str, ...] = ()


@frozen
class RoundObserver:
    """The `draftwood_round_finished` of one distribution."""

    source: PluginSource
    _hook: Callable[..., Any] = field(repr=False)

    def notify(self, stats: "RoundStats") -> None:
        """Call the hook with a finished round; what it raises passes through."""
        self._hook(stats=stats)


@frozen
class Registry:
    """What the installed distributions provide. Made by `load_plugins`, never changed."""

    registered: tuple[Registered, ...]
    records: tuple[PluginRecord, ...]
    observers: tuple[RoundObserver, ...] = ()
    _command_hooks: tuple[tuple[PluginSource, Callable[[], list[Any]]], ...] = ()

    def names(self, kind: Kind | str) -> list[str]:
        """The names of a kind that exactly one distribution registers, sorted."""
        counts = Counter(entry.plugin.name for entry in self.registered if entry.kind == kind)
        return sorted(name for name, count in counts.items() if count == 1)

    def find(
        self, kind: Kind | str, name: str, *, bundled_only: bool = False
    ) -> Registered | Refusal:
        """The plugin called `name`, or why there is none.

        Args:
            kind: Kind of the plugin; "trainable" for what `draftwood train` can train.
            name: Its name.
            bundled_only: Leave out third parties' plugins, so that a builtin pipeline means the
                same whatever is installed.
        """
        entries = [
            entry
            for entry in self.registered
            if entry.kind == kind
            and entry.plugin.name == name
            and (entry.source.bundled or not bundled_only)
        ]
        if len(entries) == 1:
            return entries[0]
        if entries:
            third_parties = [entry.source for entry in entries if not entry.source.bundled]
            removable = (third_parties or [entries[-1].source])[-1]
            return Refusal(
                f"{kind} {name!r} is registered by {listed(entry.source for entry in entries)}",
                (
                    "uninstall one, or switch its distribution off: "
                    f"DRAFTWOOD_DISABLE_PLUGINS={removable.distribution}",
                ),
            )
        choices = self.names(kind)
        hints = [f"installed: {', '.join(choices) or 'none'}"]
        hints += [str(record) for record in self.records if record.status in ("failed", "off")]
        return Refusal(
            f"unknown {kind} {name!r}{did_you_mean(name, choices)}", tuple(dict.fromkeys(hints))
        )

    def get(self, kind: Kind | str, name: str) -> Registered:
        """The plugin called `name`.

        Raises:
            PluginError: There is none; the message has the choices and known failures.
        """
        match self.find(kind, name):
            case Refusal(message=message, hints=hints):
                raise PluginError("\n  ".join((message, *hints)))
            case entry:
                return entry

    def commands(
        self, taken: Iterable[str] = ()
    ) -> "tuple[dict[str, click.Command], list[PluginRecord]]":
        """Third parties' commands. This imports click; nothing else here does.

        Args:
            taken: Names that third parties cannot use.

        Returns:
            The commands by name, and a record for each command that a distribution offers.
        """
        import click

        commands: dict[str, click.Command] = {}
        owners = dict.fromkeys(taken, "draftwood itself")
        records = []
        for source, call in self._command_hooks:
            offered, failure = call_hook(call)
            if failure:
                failed = PluginRecord.failed("command", source.entry_point, source, failure)
                records.append(failed)
            for command in offered:
                if not isinstance(command, click.Command) or not command.name:
                    name = source.entry_point
                    cause = f"returned {command!r}, which is no named click command"
                elif command.name in owners:
                    name, cause = command.name, f"the name is taken by {owners[command.name]}"
                else:
                    commands[command.name] = command
                    owners[command.name] = str(source)
                    records.append(PluginRecord.of("command", command.name, source))
                    continue
                records.append(PluginRecord.failed("command", name, source, cause))
        return commands, records


def listed(sources: Iterable[PluginSource]) -> str:
    """Distributions in words, for messages."""
    return " and ".join(str(source) for source in sources)


def call_hook(call: Callable[[], list[Any]]) -> tuple[list[Any], str | None]:
    """What one distribution's hook returns, and why it stopped, if it did."""
    records: list[Any] = []
    try:
        for result in call():
            if isinstance(result, (str, bytes)) or not isinstance(result, Iterable):
                return records, f"returned {type(result).__name__}, not an iterable of records"
            for item in result:
                records.append(item)  # noqa: PERF402 - what came before an error is kept
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - isolated like a failing import
        return records, cause_of(error)
    return records, None


def cause_of(error: BaseException) -> str:
    """An error in one line: its message, with its type unless that adds nothing."""
    message = " ".join(str(error).split())
    if isinstance(error, ImportError) and message:
        return message
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
