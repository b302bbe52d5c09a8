"""Loads the registration modules of draftwood and of installed distributions.

pluggy's own loader stops at the first broken entry point and ignores a duplicate. Here each entry
point is loaded with a pluggy manager of its own. A failure becomes a record that names the
distribution, its version and the cause, and every other plugin still works.
"""

import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from importlib import import_module
from importlib.metadata import Distribution, EntryPoint, distributions
from typing import Any

import attrs
import pluggy
from attrs import frozen

from draftwood.core.errors import PluginError
from draftwood.core.registry import hookspecs
from draftwood.core.registry.option_types import faults
from draftwood.core.registry.plugin import API_VERSION, Kind, Plugin, TrainablePlugin
from draftwood.core.registry.registry import (
    TRAINABLE,
    PluginRecord,
    PluginSource,
    Registered,
    Registry,
    RoundObserver,
    call_hook,
    cause_of,
    listed,
)
from draftwood.core.suggestions import did_you_mean
from draftwood.version import __version__

GROUP = "draftwood"
BUNDLED = (
    *(f"draftwood.plugins.{kind}s.register" for kind in Kind),
    "draftwood.training.register",
)
"""Registration modules of the bundled plugins, by name: the core imports no plugin."""

_HOOKS = {kind: f"draftwood_register_{kind}s" for kind in (*map(str, Kind), TRAINABLE)}
_HOOK_NAMES = tuple(name for name in vars(hookspecs) if name.startswith("draftwood_"))
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_FACTORY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


@cache
def installed() -> Registry:
    """The registry of this process's environment, loaded once."""
    return load_plugins()


def load_plugins(
    *,
    third_parties: bool = True,
    environ: Mapping[str, str] = os.environ,
    found: Iterable[Distribution] | None = None,
    bundled: Iterable[str] = BUNDLED,
) -> Registry:
    """Load every registration module, each on its own.

    Args:
        third_parties: False loads the bundled plugins only (`--no-plugins`).
        environ: Read for DRAFTWOOD_PLUGINS (load only these distributions or entry points),
            DRAFTWOOD_DISABLE_PLUGINS (do not load these) and DRAFTWOOD_STRICT_PLUGINS (1 makes
            any failure fatal).
        found: The distributions to search; those on sys.path by default.
        bundled: Registration modules of draftwood itself.

    Raises:
        PluginError: DRAFTWOOD_STRICT_PLUGINS is set and there are failures; lists all of them.
    """
    collector = _Collector()
    for module in bundled:
        source = PluginSource("draftwood", __version__, module, bundled=True)
        collector.load(source, partial(import_module, module))
    switches = _Switches.read(environ, third_parties)
    seen: set[tuple[str, str]] = set()
    for distribution, point in _entry_points(
        distributions() if found is None else found, collector
    ):
        source = PluginSource(*_identity(distribution), point.name)
        identity = (_plain(source.distribution), _plain(point.name))
        if identity in seen:
            continue  # a second copy further down sys.path: Python would not import it either
        seen.add(identity)
        off = switches.off(source)
        if off:
            collector.records.append(PluginRecord.of(None, point.name, source, "off", off))
        else:
            collector.load(source, point.load)
    collector.records += switches.unknown_names({name for identity in seen for name in identity})
    registry = collector.finish()
    broken = [
        f"  {record.name} of '{record.distribution} {record.version}': {record.cause}"
        for record in registry.records
        if record.broken
    ]
    if switches.strict and broken:
        message = "DRAFTWOOD_STRICT_PLUGINS is set and these plugins are broken:"
        raise PluginError("\n".join([message, *broken]))
    return registry


class _Collector:
    """Collects what registration modules register."""

    def __init__(self) -> None:
        self.registered: list[Registered] = []
        self.records: list[PluginRecord] = []
        self.observers: list[RoundObserver] = []
        self.command_hooks: list[tuple[PluginSource, Callable[[], list[Any]]]] = []

    def load(self, source: PluginSource, load: Callable[[], Any]) -> None:
        """Import one registration object and call its hooks; failures become records."""
        try:
            provider = load()
            manager = pluggy.PluginManager(hookspecs.PROJECT)
            manager.add_hookspecs(hookspecs)
            manager.register(provider, source.entry_point)
            unmarked = _unmarked(provider)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - SystemExit too must not end the command
            self.fail(None, source.entry_point, source, cause_of(error))
            return
        callers = manager.get_hookcallers(provider) or []
        for cause in (*unmarked, *_misspelt(callers)):
            self.fail(None, source.entry_point, source, cause)
        if not callers and not unmarked:
            self.fail(None, source.entry_point, source, "has no draftwood hook")
        implemented = {caller.name for caller in callers if caller.has_spec()}
        for kind, hook in _HOOKS.items():
            if hook in implemented:
                self.register(kind, source, getattr(manager.hook, hook))
        if "draftwood_register_commands" in implemented:
            self.command_hooks.append((source, manager.hook.draftwood_register_commands))
        if "draftwood_round_finished" in implemented:
            self.observers.append(RoundObserver(source, manager.hook.draftwood_round_finished))
            self.records.append(PluginRecord.of("observer", source.entry_point, source))

    def register(self, kind: str, source: PluginSource, call: Callable[[], list[Any]]) -> None:
        """Call one registration hook and check what it returns."""
        plugins, failure = call_hook(call)
        if failure:
            self.fail(kind, source.entry_point, source, failure)
        expected = TrainablePlugin if kind == TRAINABLE else Plugin
        for plugin in plugins:
            if fault := _fault(plugin, expected):
                self.fail(kind, str(getattr(plugin, "name", source.entry_point)), source, fault)
            else:
                registered = Registered(kind if kind == TRAINABLE else Kind(kind), plugin, source)
                self.registered.append(registered)

    def fail(self, kind: str | None, name: str, source: PluginSource, cause: str) -> None:
        """Record a failure."""
        self.records.append(PluginRecord.failed(kind, name, source, cause))

    def finish(self) -> Registry:
        """Record each plugin as usable, or as a duplicate if others have its name."""
        records = []
        for entry in self.registered:
            rivals = [
                other.source
                for other in self.registered
                if other is not entry
                and (other.kind, other.plugin.name) == (entry.kind, entry.plugin.name)
            ]
            status, cause = "ok", None
            if rivals:
                sources = [entry.source, *rivals]
                status = "duplicate"
                cause = f"also registered by {listed(rivals)}; {_winner(sources)}"
            records.append(
                PluginRecord.of(entry.kind, entry.plugin.name, entry.source, status, cause)
            )
        return Registry(
            tuple(self.registered),
            (*records, *self.records),
            tuple(self.observers),
            tuple(self.command_hooks),
        )


def _winner(sources: Sequence[PluginSource]) -> str:
    """Which of the distributions that register one name is used, and how to use another one."""
    removable = next((s for s in sources if not s.bundled), sources[-1])
    switch = f"DRAFTWOOD_DISABLE_PLUGINS={removable.distribution} leaves the other"
    if winner := next((source for source in sources if source.bundled), None):
        return f"builtin pipelines use that of {winner}, other files none: {switch}"
    return f"none is used: {switch}"


@frozen
class _Switches:
    """Which third parties the environment allows."""

    strict: bool
    third_parties: bool
    only: frozenset[str] | None
    never: frozenset[str]

    @classmethod
    def read(cls, environ: Mapping[str, str], third_parties: bool) -> "_Switches":
        strict = environ.get("DRAFTWOOD_STRICT_PLUGINS", "").strip().lower()
        if strict not in ("", "0", "1", "false", "true"):
            raise PluginError(f"DRAFTWOOD_STRICT_PLUGINS is {strict!r}; choices: 0, 1")
        only = _split(environ.get("DRAFTWOOD_PLUGINS", ""))
        return cls(
            strict=strict in ("1", "true"),
            third_parties=third_parties,
            only=only or None,
            never=_split(environ.get("DRAFTWOOD_DISABLE_PLUGINS", "")),
        )

    def off(self, source: PluginSource) -> str | None:
        """Why a third party's entry point is not loaded; None if it is."""
        names = {_plain(source.distribution), _plain(source.entry_point)}
        if not self.third_parties:
            return "--no-plugins"
        if names & self.never:
            return "DRAFTWOOD_DISABLE_PLUGINS names it"
        if self.only is not None and not names & self.only:
            return "DRAFTWOOD_PLUGINS does not name it"
        return None

    def unknown_names(self, installed_names: set[str]) -> list[PluginRecord]:
        """A record for each name in the environment that nothing installed has."""
        return [
            PluginRecord(None, name, name, "not installed", "failed", f"named by {variable}")
            for variable, names in (
                ("DRAFTWOOD_PLUGINS", self.only or frozenset()),
                ("DRAFTWOOD_DISABLE_PLUGINS", self.never),
            )
            for name in sorted(names - installed_names)
        ]


def _entry_points(
    found: Iterable[Distribution], collector: _Collector
) -> Iterator[tuple[Distribution, EntryPoint]]:
    """Entry points of the group `draftwood`. Metadata that cannot be read becomes a record."""
    for distribution in found:
        try:
            text = distribution.read_text("entry_points.txt") or ""
            if GROUP not in text:
                continue
            points = [point for point in distribution.entry_points if point.group == GROUP]
        except Exception as error:  # noqa: BLE001 - a third party's metadata can be anything
            name, version = _identity(distribution)
            cause = f"entry_points.txt cannot be read ({cause_of(error)})"
            collector.fail(None, name, PluginSource(name, version, name), cause)
            continue
        yield from ((distribution, point) for point in points)


def _identity(distribution: Distribution) -> tuple[str, str]:
    try:
        metadata = distribution.metadata
        return metadata["Name"] or "unknown", metadata["Version"] or "unknown"
    except Exception:  # noqa: BLE001 - no METADATA file; the entry point can still be loaded
        return "unknown", "unknown"


def _fault(plugin: object, expected: type) -> str | None:
    """Why what a hook returned cannot be registered."""
    if not isinstance(plugin, (Plugin, TrainablePlugin)) or not isinstance(plugin, expected):
        return f"returned {type(plugin).__name__}, not draftwood.{expected.__name__}"
    if plugin.api != API_VERSION:
        return f"written for plugin API {plugin.api}; this draftwood has {API_VERSION}"
    if not isinstance(plugin.name, str) or not _NAME.fullmatch(plugin.name):
        return f"bad name {plugin.name!r}: lower-case letters, digits and '_', a letter first"
    if not isinstance(plugin.factory, str) or not _FACTORY.fullmatch(plugin.factory):
        return f"bad factory {plugin.factory!r}: write 'package.module:Class'"
    if not isinstance(plugin.summary, str) or "\n" in plugin.summary:
        return "its summary is not one line"
    if isinstance(plugin, Plugin) and not callable(plugin.traits):
        return "its traits cannot be called"
    found = faults(plugin.options)
    if not found and "use" in attrs.fields_dict(plugin.options):
        found = ["an option cannot be called 'use'"]
    return f"options: {'; '.join(found)}" if found else None


def _unmarked(provider: Any) -> list[str]:
    """Functions that are named like a hook but not marked as one."""
    return [
        f"{name} is not marked with @hookimpl"
        for name in dir(provider)
        if name.startswith("draftwood_")
        and inspect.isroutine(getattr(provider, name, None))
        and not hasattr(getattr(provider, name), f"{hookspecs.PROJECT}_impl")
    ]


def _misspelt(callers: Iterable[pluggy.HookCaller]) -> list[str]:
    """Marked hooks that draftwood does not have."""
    causes = []
    for caller in callers:
        if caller.has_spec() or all(impl.optionalhook for impl in caller.get_hookimpls()):
            continue
        causes.append(f"unknown hook {caller.name!r}{did_you_mean(caller.name, _HOOK_NAMES)}")
    return causes


def _plain(name: str) -> str:
    """A distribution's name in the form that comparisons use."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _split(names: str) -> frozenset[str]:
    return frozenset(_plain(name.strip()) for name in names.split(",") if name.strip())
