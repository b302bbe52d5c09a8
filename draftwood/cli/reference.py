"""Writes docs/cli.md from the commands themselves: `python -m draftwood.cli.reference FILE`."""

import inspect
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path

import click

from draftwood.cli.app import COMMANDS, app
from draftwood.core.config.pipeline import builtin_pipelines
from draftwood.core.registry.loader import load_plugins

INTRODUCTION = """\
# Command line

Written by `make docs` from the code; a test keeps it current. Each command also explains itself:
`draftwood COMMAND --help`.

## Exit codes

| code | meaning |
| --- | --- |
| 0 | ok |
| 1 | a check failed: pipelines of `demo` or `bench` gave other tokens than plain decoding, \
`doctor` found something missing |
| 2 | bad input: an argument, a pipeline, a plugin or a checkpoint; told on standard error |
| 130 | interrupted |

## Builtin pipelines

A PIPELINE argument is one of these names, or a file. `extends: NAME` reuses one in a file.

| name | what it is |
| --- | --- |
"""


def reference() -> str:
    """The whole page, for the bundled commands."""
    parts = [INTRODUCTION]
    for name, path in builtin_pipelines().items():
        first = path.read_text(encoding="utf-8").partition("\n")[0]
        parts.append(f"| `{name}` | {first.removeprefix('# ').rstrip('.')} |\n")
    parts.append("\n## Options of every command\n\n" + _options(app))
    for name in COMMANDS:
        module = import_module(f"draftwood.cli.{name}")
        for title, command in _leaves(name, module.command):
            parts += [f"\n## draftwood {title}\n\n", _help(command), _options(command)]
        parts.append(_shape(getattr(module, "JSON", {})))
    for name, command in load_plugins(third_parties=False).commands(taken=COMMANDS)[0].items():
        for title, leaf in _leaves(name, command):
            shape = getattr(inspect.getmodule(leaf.callback), "JSON", {})
            parts += [f"\n## draftwood {title}\n\n", _help(leaf), _options(leaf), _shape(shape)]
    return "".join(parts)


def _shape(keys: Mapping[str, str]) -> str:
    """What a command's JSON holds, if it prints any."""
    if not keys:
        return ""
    rows = [f"| `{key}` | {meaning} |\n" for key, meaning in keys.items()]
    return "\nJSON:\n\n| key | value |\n| --- | --- |\n" + "".join(rows)


def _leaves(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """A command, or a group and the commands in it."""
    arguments = [p.make_metavar(click.Context(command)) for p in command.params if _positional(p)]
    yield " ".join([name, *arguments]), command
    if isinstance(command, click.Group):
        for inner, each in command.commands.items():
            yield f"{name} {inner}", each


def _help(command: click.Command) -> str:
    """The help text; what it does not wrap is an example."""
    lines = []
    for block in inspect.cleandoc(command.help or "").split("\n\n"):
        if block.startswith("\b\n"):
            lines.append("```\n" + inspect.cleandoc(block[2:]) + "\n```")
        else:
            lines.append(block)
    return "\n\n".join(lines) + "\n"


def _options(command: click.Command) -> str:
    context = click.Context(command)
    records = [param.get_help_record(context) for param in command.params if not _positional(param)]
    rows = [f"| `{names}` | {text} |\n" for names, text in filter(None, records)]
    return "\n| option | meaning |\n| --- | --- |\n" + "".join(rows) if rows else ""


def _positional(param: click.Parameter) -> bool:
    return isinstance(param, click.Argument)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(reference(), encoding="utf-8")
