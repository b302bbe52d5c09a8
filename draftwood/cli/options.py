"""Options that several commands share, and how commands read pipelines and print results."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from draftwood.core.errors import DraftwoodError, RequestError

if TYPE_CHECKING:
    from rich.progress import Progress

    from draftwood.cli.app import Session
    from draftwood.core.config.pipeline import PipelineConfig

F = TypeVar("F", bound=Callable[..., Any])


def pipeline_argument(command: F) -> F:
    """PIPELINE and --set."""
    command = settings_option(command)
    return click.argument("pipeline", metavar="PIPELINE")(command)


def settings_option(command: F) -> F:
    """--set, which may be repeated."""
    return click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="SECTION.OPTION=VALUE",
        help="Override one option; may be repeated. All apply before validation.",
    )(command)


def prompt_options(command: F) -> F:
    """--prompt, --prompt-file and --seed; `read_prompt` requires one of the first two."""
    command = number_option("--seed", minimum=0, help="Make sampling repeatable.")(command)
    command = click.option(
        "--prompt-file",
        metavar="FILE",
        help="Read the prompt from a file; - reads standard input.",
    )(command)
    return click.option("--prompt", metavar="TEXT", help="The text to continue.")(command)


def number_option(
    name: str,
    *,
    help: str,  # noqa: A002 - as click calls it
    default: int | None = None,
    minimum: int = 1,
) -> Callable[[F], F]:
    """A whole number of at least `minimum`; its default is shown in the help."""
    return click.option(
        name,
        metavar="N",
        type=click.IntRange(min=minimum),
        default=default,
        show_default=default is not None,
        help=help,
    )


def file_option(name: str, *, help: str) -> Callable[[F], F]:  # noqa: A002
    """A file to write."""
    return click.option(name, metavar="FILE", type=click.Path(path_type=Path), help=help)


def write_text(option: str, path: Path, text: str) -> None:
    """Write the file that an option names.

    Raises:
        DraftwoodError: It cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DraftwoodError(f"{option} {path}: {error.strerror}") from error


def read_prompt(prompt: str | None, prompt_file: str | None) -> str:
    """The prompt's text.

    Raises:
        click.UsageError: Not exactly one of the two is given.
        RequestError: The file cannot be read as UTF-8 text.
    """
    if (prompt is None) == (prompt_file is None):
        raise click.UsageError("give one of --prompt TEXT and --prompt-file FILE")
    if prompt_file is None:
        return prompt or ""
    try:
        if prompt_file == "-":
            return sys.stdin.buffer.read().decode("utf-8")
        return Path(prompt_file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise RequestError(f"--prompt-file {prompt_file}: {reason}") from error


def read_pipeline(session: "Session", pipeline: str, settings: Sequence[str]) -> "PipelineConfig":
    """A pipeline's configuration, whose parts work together.

    Raises:
        ConfigError: With every problem found.
    """
    from draftwood.core.config.compose import check_composition
    from draftwood.core.config.pipeline import load_config

    config = load_config(pipeline, settings, registry=session.registry)
    check_composition(config, session.registry)
    return config


def numbers(_: click.Context, __: click.Parameter, value: str) -> tuple[float, ...]:
    """A callback for temperatures such as 0.7,1,1.5: finite and not negative."""
    try:
        temperatures = tuple(float(part) for part in value.split(","))
    except ValueError as error:
        raise click.BadParameter(f"{value!r}: numbers with commas between them") from error
    if not all(0.0 <= temperature < 1e3 for temperature in temperatures):
        raise click.BadParameter(f"{value!r}: temperatures are 0 or above, and finite")
    return temperatures


def json_option(command: F) -> F:
    """--json."""
    return click.option("as_json", "--json", is_flag=True, help="Print one JSON object instead.")(
        command
    )


def print_json(value: Mapping[str, Any]) -> None:
    """One JSON object on standard output; NaN and infinity never appear in it."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def progress_bar() -> "Progress":
    """A bar on standard error that leaves nothing behind; hidden if that is no terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    return Progress(console=console, transient=True, disable=not console.is_terminal)


def table(rows: Sequence[tuple[str, ...]], header: tuple[str, ...]) -> str:
    """Columns aligned by spaces, readable in a pipe as on a terminal."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (header, *rows)
    )
