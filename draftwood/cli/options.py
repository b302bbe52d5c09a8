"""Arguments that several commands share, and the shape of what they print."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from draftwood.core.errors import RequestError

if TYPE_CHECKING:
    from rich.console import Console

F = TypeVar("F", bound=Callable[..., Any])


def pipeline_argument(command: F) -> F:
    """PIPELINE and --set."""
    command = settings_option(command)
    return click.argument("pipeline", metavar="PIPELINE")(command)


def settings_option(command: F) -> F:
    """--set, as often as wanted."""
    return click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="SECTION.OPTION=VALUE",
        help="Override one option; may be repeated. All apply before validation.",
    )(command)


def prompt_options(command: F) -> F:
    """--prompt and --prompt-file, of which `read_prompt` wants exactly one."""
    command = click.option(
        "--prompt-file",
        metavar="FILE",
        help="Read the prompt from a file; - reads standard input.",
    )(command)
    return click.option("--prompt", metavar="TEXT", help="The text to go on from.")(command)


def read_prompt(prompt: str | None, prompt_file: str | None) -> str:
    """The prompt's text. Raises click.UsageError unless exactly one is given, RequestError if
    the file cannot be read as UTF-8 text."""
    if (prompt is None) == (prompt_file is None):
        raise click.UsageError("give one of --prompt TEXT and --prompt-file FILE")
    if prompt is not None:
        return prompt
    assert prompt_file is not None
    try:
        if prompt_file == "-":
            return sys.stdin.buffer.read().decode("utf-8")
        return Path(prompt_file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise RequestError(f"--prompt-file {prompt_file}: {reason}") from error


def seed_option(command: F) -> F:
    """--seed."""
    return click.option(
        "--seed", metavar="N", type=click.IntRange(min=0), help="Make sampling repeatable."
    )(command)


def numbers(_: click.Context, __: click.Parameter, value: str) -> tuple[float, ...]:
    """A callback for options like 0.7,1,1.5: temperatures, finite and not negative."""
    try:
        found = tuple(float(part) for part in value.split(","))
    except ValueError as error:
        raise click.BadParameter(f"{value!r}: numbers with commas between them") from error
    if not all(0.0 <= each < 1e3 for each in found):
        raise click.BadParameter(f"{value!r}: temperatures are 0 or above, and finite")
    return found


def json_option(command: F) -> F:
    """--json."""
    return click.option("as_json", "--json", is_flag=True, help="Print one JSON object instead.")(
        command
    )


def print_json(value: Mapping[str, Any]) -> None:
    """One JSON object on standard output; NaN and infinity never appear in it."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def standard_error() -> "Console":
    """Where bars are drawn, if a terminal is there to see them."""
    from rich.console import Console

    return Console(stderr=True)


def table(rows: Sequence[tuple[str, ...]], header: tuple[str, ...]) -> str:
    """Columns aligned by spaces, readable in a pipe as on a terminal."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (header, *rows)
    )
