"""Options, output and error handling that the studies' commands share."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from draftwood.cli.app import Session
from draftwood.cli.options import json_option, print_json
from draftwood.core.errors import DraftwoodError

F = TypeVar("F", bound=Callable[..., Any])


def main(command: click.Command, name: str) -> None:
    """Run a study's command with the process's arguments and exit."""
    sys.exit(execute(command, sys.argv[1:], name))


def execute(command: click.Command, arguments: Sequence[str], name: str) -> int:
    """Run a study's command. Exit codes are those of `draftwood`: 0 ok, 2 bad input, 130."""
    try:
        session = Session(third_parties=True)
        command.main(list(arguments), prog_name=name, standalone_mode=False, obj=session)
    except click.ClickException as error:
        error.show()
        return 2
    except DraftwoodError as error:
        click.echo(f"error: {error}", err=True)
        return 2
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        return 130
    return 0


def numbers(_: click.Context, __: click.Parameter, value: str) -> tuple[float, ...]:
    """A callback for options like 0.7,1,1.5: temperatures, finite and not negative."""
    try:
        temperatures = tuple(float(part) for part in value.split(","))
    except ValueError as error:
        raise click.BadParameter(f"{value!r}: numbers with commas between them") from error
    if not all(0.0 <= each < 1e3 for each in temperatures):
        raise click.BadParameter(f"{value!r}: temperatures are 0 or above, and finite")
    return temperatures


def text_options(temperatures: str, tokens: int) -> Callable[[F], F]:
    """--prompts, --limit, --temperature, --tokens, --seed and --json, with these defaults."""
    options = (
        click.option(
            "--prompts",
            multiple=True,
            default=("builtin:code", "builtin:open"),
            show_default=True,
            metavar="SOURCE",
            help="Prompt sets, as in bench. May be repeated.",
        ),
        click.option(
            "--limit",
            metavar="N",
            type=click.IntRange(min=1),
            help="First N prompts of each set only.",
        ),
        click.option(
            "--temperature",
            "temperatures",
            metavar="T,...",
            default=temperatures,
            show_default=True,
            callback=numbers,
            help="Temperatures of the target.",
        ),
        click.option(
            "--tokens",
            metavar="N",
            type=click.IntRange(min=2),
            default=tokens,
            show_default=True,
            help="New tokens per prompt.",
        ),
        click.option(
            "--seed", metavar="N", type=click.IntRange(min=0), default=0, show_default=True
        ),
        json_option,
    )

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def out_option(files: str) -> Callable[[F], F]:
    """--out, a folder for these files."""
    return click.option(
        "--out",
        metavar="DIR",
        type=click.Path(file_okay=False, path_type=Path),
        help=f"Write {files} there.",
    )


def show(
    name: str, result: Mapping[str, Any], markdown: str, out: Path | None, as_json: bool
) -> None:
    """Print the result, and write NAME.json and NAME.md to `out`.

    Raises:
        DraftwoodError: `out` cannot be written.
    """
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
            data = json.dumps(result, indent=1) + "\n"
            (out / f"{name}.json").write_text(data, encoding="utf-8")
            (out / f"{name}.md").write_text(markdown, encoding="utf-8")
        except OSError as error:
            raise DraftwoodError(f"--out {out}: {error.strerror}") from error
    if as_json:
        print_json(result)
    else:
        click.echo(markdown)


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, its first column left-aligned."""
    rule = ("---", *["---:"] * (len(columns) - 1))
    return "\n".join(f"| {' | '.join(line)} |" for line in (columns, rule, *rows))
