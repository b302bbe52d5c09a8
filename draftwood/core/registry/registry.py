"""What the loader found: plugins by kind and name, where each came from, what is broken and why."""

import difflib
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from draftwood.core.errors import PluginError
from draftwood.core.registry.plugin import Kind, Plugin

if TYPE_CHECKING:
    import click

    from draftwood.core.values import RoundStats


@frozen
class Source:
    """Where a plugin came from. entry_point: its name, for bundled plugins the module."""

    distribution: str
    version: str
    entry_point: str
    bundled: bool = False

    def __str__(self) -> str:
        return f"'{self.distribution} {self.version}'"


@frozen
class Registered:
    """A plugin and who registered it."""

    kind: Kind
    plugin: Plugin
    source: Source

    def build(self, options: Any) -> Any:
        """Import the factory and call it with `options`.

        Raises PluginError naming the distribution if the import fails or the path names nothing;
        what the factory itself raises passes through.
        """
        module, _, attribute = self.plugin.factory.partition(":")
        try:
            factory = getattr(import_module(module), attribute)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise PluginError(
                f"{self.kind} {self.plugin.name!r} of {self.source} cannot be loaded from "
                f"{self.plugin.factory} ({cause_of(error)})"
            ) from error
        return factory(options)


@frozen
class Record:
    """One line of `draftwood plugins list`.

    kind: drafter, tree, controller, verifier, command or observer; None for an entry point that
    failed as a whole or is off. name: the plugin's, else the entry point's. status: "ok",
    "failed", "duplicate" or "off". cause: why it is not "ok".
    """

    kind: str | None
    name: str
    distribution: str
    version: str
    status: str
    cause: str | None = None

    @property
    def broken(self) -> bool:
        return self.status in ("failed", "duplicate")


@frozen
class Refusal:
    """Why a name gives no plugin: what is wrong, then the choices and the next step."""

    message: str
    hints: tuple[str, ...] = ()


@frozen
class Observer:
    """The `draftwood_round_finished` of one distribution."""

    source: Source
    _hook: Callable[..., Any] = field(repr=False)

    def notify(self, stats: "RoundStats") -> None:
        """Tell it of a finished round; whatever it raises passes through."""
        self._hook(stats=stats)


@frozen
class Registry:
    """What the installed distributions provide. Made by `load_plugins`, never changed."""

    registered: tuple[Registered, ...]
    records: tuple[Record, ...]
    observers: tuple[Observer, ...] = ()
    _command_hooks: tuple[tuple[Source, Callable[[], list[Any]]], ...] = ()

    def names(self, kind: Kind) -> list[str]:
        """Names usable in a pipeline, sorted."""
        counts: dict[str, int] = {}
        for entry in self.registered:
            if entry.kind is kind:
                counts[entry.plugin.name] = counts.get(entry.plugin.name, 0) + 1
        return sorted(name for name, count in counts.items() if count == 1)

    def find(self, kind: Kind, name: str, *, bundled_only: bool = False) -> Registered | Refusal:
        """The plugin called `name`, or why there is none.

        bundled_only: what the builtin pipelines ask for, so that they mean the same whatever
        else is installed.
        """
        found = [
            entry
            for entry in self.registered
            if entry.kind is kind
            and entry.plugin.name == name
            and (entry.source.bundled or not bundled_only)
        ]
        if len(found) == 1:
            return found[0]
        if found:
            return Refusal(
                f"{kind} {name!r} is registered by {listed(entry.source for entry in found)}",
                (
                    "uninstall one, or switch its distribution off: "
                    f"DRAFTWOOD_DISABLE_PLUGINS={_other(found).distribution}",
                ),
            )
        choices = self.names(kind)
        close = difflib.get_close_matches(name, choices, n=1)
        suggestion = f"; did you mean {close[0]!r}?" if close else ""
        hints = [f"installed: {', '.join(choices) or 'none'}"]
        for line in self.records:
            if line.status == "failed":
                hints.append(
                    f"'{line.distribution} {line.version}' failed to load ({line.cause}); "
                    f"see `draftwood plugins list`"
                )
            elif line.status == "off":
                hints.append(f"'{line.distribution} {line.version}' is off: {line.cause}")
        return Refusal(f"unknown {kind} {name!r}{suggestion}", tuple(dict.fromkeys(hints)))

    def get(self, kind: Kind, name: str) -> Registered:
        """The plugin called `name`. Raises PluginError with the choices and known failures."""
        match self.find(kind, name):
            case Refusal(message=message, hints=hints):
                raise PluginError("\n  ".join((message, *hints)))
            case entry:
                return entry

    def commands(
        self, taken: Iterable[str] = ()
    ) -> "tuple[dict[str, click.Command], list[Record]]":
        """Commands of third parties by name, and a record for each one that was offered.

        taken: names that are not to be had. This imports click; nothing else here does.
        """
        import click

        commands: dict[str, click.Command] = {}
        owners = dict.fromkeys(taken, "draftwood itself")
        records = []
        for source, call in self._command_hooks:
            offered, failure = call_hook(call)
            if failure:
                records.append(failed("command", source.entry_point, source, failure))
            for command in offered:
                if not isinstance(command, click.Command) or not command.name:
                    cause = f"returned {command!r}, which is no named click command"
                    records.append(failed("command", source.entry_point, source, cause))
                elif command.name in owners:
                    cause = f"the name is taken by {owners[command.name]}"
                    records.append(failed("command", command.name, source, cause))
                else:
                    commands[command.name] = command
                    owners[command.name] = str(source)
                    records.append(record("command", command.name, source))
        return commands, records


def _other(found: list[Registered]) -> Source:
    """The source to suggest switching off: one that is not bundled."""
    return next((e.source for e in reversed(found) if not e.source.bundled), found[-1].source)


def listed(sources: Iterable[Source]) -> str:
    return " and ".join(str(source) for source in sources)


def call_hook(call: Callable[[], list[Any]]) -> tuple[list[Any], str | None]:
    """What one distribution's hook gives, and why it stopped giving, if it did."""
    given: list[Any] = []
    try:
        for result in call():
            if isinstance(result, (str, bytes)) or not isinstance(result, Iterable):
                return given, f"returned {type(result).__name__}, not an iterable of records"
            for item in result:
                given.append(item)  # noqa: PERF402 - what came before an error is kept
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - isolated like a failing import
        return given, cause_of(error)
    return given, None


def record(
    kind: str | None, name: str, source: Source, status: str = "ok", cause: str | None = None
) -> Record:
    return Record(
        None if kind is None else str(kind),
        name,
        source.distribution,
        source.version,
        status,
        cause,
    )


def failed(kind: str | None, name: str, source: Source, cause: str) -> Record:
    return record(kind, name, source, "failed", cause)


def cause_of(error: BaseException) -> str:
    """An error in one line: its message, with its type unless that adds nothing."""
    message = " ".join(str(error).split())
    if isinstance(error, ImportError) and message:
        return message
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
