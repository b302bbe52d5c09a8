"""Writes the reference pages from the code: `python -m draftwood.cli.reference CLI PIPELINE`.

CLI is the page of the command line, PIPELINE the page of the keys of pipeline and training files.
"""

import inspect
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import attrs
import click
from jinja2 import Environment

from draftwood.cli.app import COMMANDS, app
from draftwood.core.config.defaults import DESCRIPTIONS
from draftwood.core.config.pipeline import (
    GenerationOptions,
    RuntimeConfig,
    TargetConfig,
    builtin_pipelines,
)
from draftwood.core.config.structure import describe
from draftwood.core.registry.loader import load_plugins
from draftwood.core.registry.option_types import fields_of, meanings, nested_options
from draftwood.core.registry.plugin import Kind
from draftwood.core.registry.registry import TRAINABLE

CLI = """\
# Command line

Written by `make docs` from the code; a test keeps it current. Each command also explains itself:
`draftwood COMMAND --help`.

## Exit codes

| code | meaning |
| --- | --- |
| 0 | ok |
| 1 | a check failed: pipelines of `demo` or `bench` gave other tokens than plain decoding, \
`doctor` found something missing |
| 2 | bad input: an argument, a pipeline, a plugin or a checkpoint; or standard output that cannot \
be written; told on standard error |
| 130 | interrupted |
| 141 | the reader of standard output has left |

## Builtin pipelines

A PIPELINE argument is one of these names, or a file. `extends: NAME` reuses one in a file.

| name | what it is |
| --- | --- |
{% for name, text in pipelines.items() %}
| `{{ name }}` | {{ text }} |
{% endfor %}
{% for command in commands %}

## {{ command.title }}

{% if command.help %}
{{ command.help }}

{% endif %}
{% if command.options %}
| option | meaning |
| --- | --- |
{% for names, text in command.options %}
| `{{ names }}` | {{ text }} |
{% endfor %}
{% endif %}
{% if command.json %}

JSON:

| key | value |
| --- | --- |
{% for key, text in command.json.items() %}
| `{{ key }}` | {{ text }} |
{% endfor %}
{% endif %}
{% endfor %}
"""

PIPELINE = """\
# Pipeline files

Written by `make docs` from the code; a test keeps it current. A pipeline file has the sections
`target`, `drafter`, `tree`, `controller`, `verifier`, `generation` and `runtime`. `extends` names a
builtin pipeline, or a file, that it changes. `drafter`, `tree`, `controller` and `verifier` name a
plugin by `use` and have its options beside it. `draftwood schema` writes the same for the plugins
that are installed on a machine, third parties' included.
{% for section in sections %}

{{ "#" * section.level }} {{ section.title }}

{{ section.text }}
{% if section.options %}

| key | type | default | meaning |
| --- | --- | --- | --- |
{% for option in section.options %}
| `{{ option.name }}` | {{ option.type }} | {{ option.default }} | {{ option.meaning }} |
{% endfor %}
{% endif %}
{% endfor %}
"""


def cli_page() -> str:
    """The page of the bundled commands."""
    pipelines = {
        name: path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ").rstrip(".")
        for name, path in builtin_pipelines().items()
    }
    commands: list[dict[str, Any]] = [
        {"title": "Options of every command", "options": _command_options(app)}
    ]
    for name in COMMANDS:
        module = import_module(f"draftwood.cli.{name}")
        leaves = list(_leaves(name, module.command))
        for title, command in leaves:
            last = command is leaves[-1][1]
            commands.append(
                {
                    "title": f"draftwood {title}",
                    "help": _command_help(command),
                    "options": _command_options(command),
                    "json": getattr(module, "JSON", {}) if last else {},
                }
            )
    return _render(CLI, pipelines=pipelines, commands=commands)


def pipeline_page() -> str:
    """The page of every key of pipeline and training files, for the bundled plugins."""
    registry = load_plugins(third_parties=False)
    sections = [_section(2, "target", TargetConfig)]
    for kind in Kind:
        text = f"`use` names the {kind}. {DESCRIPTIONS.get(kind, '')}".strip()
        sections.append({"level": 2, "title": kind.value, "text": text})
        for name in registry.names(kind):
            plugin = registry.get(kind, name).plugin
            sections.append(_section(3, f"{kind}: {{use: {name}}}", plugin.options))
    sections.append(_section(2, "generation", GenerationOptions))
    sections.append(_section(2, "runtime", RuntimeConfig))
    text = "`draftwood train FILE` reads these files. `drafter.algorithm` names the algorithm."
    sections.append({"level": 2, "title": "Training files", "text": text})
    for name in registry.names(TRAINABLE):
        options = registry.get(TRAINABLE, name).plugin.options
        sections.append(_section(3, f"drafter: {{algorithm: {name}}}", options))
    return _render(PIPELINE, sections=sections)


def _render(template: str, **values: Any) -> str:
    environment = Environment(trim_blocks=True, keep_trailing_newline=True, autoescape=False)
    return environment.from_string(template).render(values)


def _section(level: int, title: str, options: type) -> dict[str, Any]:
    text = inspect.cleandoc(options.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
    rows = list(_rows(options))
    if not rows:
        text += " No options."
    return {"level": level, "title": title, "text": text, "options": rows}


def _rows(options: type, prefix: str = "") -> Iterator[dict[str, str]]:
    """A row per option; the options of a nested class follow under dotted keys."""
    texts = meanings(options)
    for name, (attribute, shape) in fields_of(options).items():
        yield {
            "name": prefix + name,
            "type": _cell(describe(shape)),
            "default": _default(attribute.default),
            "meaning": _cell(texts.get(name, "")),
        }
        for nested in nested_options(shape):
            yield from _rows(nested, f"{prefix}{name}.")


def _default(value: Any) -> str:
    if value is attrs.NOTHING:
        return "required"
    if isinstance(value, attrs.Factory) or attrs.has(type(value)):  # type: ignore[arg-type]
        return "see below"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"`{list(value) if isinstance(value, tuple) else value}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _leaves(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """A command, or a group and the commands in it."""
    arguments = [p.make_metavar(click.Context(command)) for p in command.params if _positional(p)]
    yield " ".join([name, *arguments]), command
    if isinstance(command, click.Group):
        for inner, each in command.commands.items():
            yield f"{name} {inner}", each


def _command_help(command: click.Command) -> str:
    """The help text; a block that click does not wrap is an example."""
    blocks = inspect.cleandoc(command.help or "").split("\n\n")
    return "\n\n".join(
        f"```\n{inspect.cleandoc(block[2:])}\n```" if block.startswith("\b\n") else block
        for block in blocks
    )


def _command_options(command: click.Command) -> list[tuple[str, str]]:
    context = click.Context(command)
    records = [param.get_help_record(context) for param in command.params if not _positional(param)]
    return [record for record in records if record]


def _positional(param: click.Parameter) -> bool:
    return isinstance(param, click.Argument)


if __name__ == "__main__":
    for path, page in zip(sys.argv[1:], (cli_page, pipeline_page), strict=False):
        Path(path).write_text(page(), encoding="utf-8")
