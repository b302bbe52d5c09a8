"""Options that several commands share, and how commands read pipelines and print results."""

import functools
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import click
from attrs import frozen

from draftwood.core.errors import DraftwoodError, RequestError

if TYPE_CHECKING:
    from rich.progress import Progress

    from draftwood.cli.app import Session
    from draftwood.core.config.pipeline import PipelineConfig
    from draftwood.core.generation import Pipeline
    from draftwood.core.text import Prompt

F = TypeVar("F", bound=Callable[..., Any])

MAX_PROMPT_BYTES = 1 << 26
"""Most bytes of a prompt; more are refused before they are read."""


@frozen
class PipelineSource:
    """PIPELINE and --set: what a command is asked to read.

    Attributes:
        name: A builtin name or a file.
        settings: "section.option=value".
    """

    name: str
    settings: tuple[str, ...]

    def read(self, session: "Session") -> "PipelineConfig":
        """The configuration, whose parts work together.

        Raises:
            ConfigError: With every problem found.
        """
        from draftwood.core.config.compose import check_composition
        from draftwood.core.config.pipeline import load_config

        config = load_config(self.name, self.settings, registry=session.registry)
        check_composition(config, session.registry)
        return config

    def load(self, session: "Session") -> "Pipeline":
        """The pipeline; raises what `load_pipeline` raises."""
        from draftwood.core import build

        return build.load_pipeline(self.name, self.settings, registry=session.registry)


@frozen
class RequestArguments:
    """The options of one request.

    Attributes:
        prompt: The prompt's text.
        prompt_file: The file that has it instead; - for standard input.
        chat: Whether the prompt is the user's message of a chat.
        system: The system's message of the chat.
        stop: Texts that end the output.
        max_new_tokens: Most new tokens.
        temperature: 0 is greedy.
        seed: Of sampling.
    """

    prompt: str | None
    prompt_file: str | None
    chat: bool
    system: str | None
    stop: tuple[str, ...]
    max_new_tokens: int | None
    temperature: float | None
    seed: int | None

    def read_prompt(self) -> "Prompt":
        """The prompt: text, or chat messages with --chat or --system.

        Raises:
            click.UsageError: Not exactly one of --prompt and --prompt-file is given.
            RequestError: The file cannot be read as UTF-8 text.
        """
        text = read_prompt(self.prompt, self.prompt_file)
        if not self.chat and self.system is None:
            return text
        messages = [{"role": "user", "content": text}]
        if self.system is not None:
            messages.insert(0, {"role": "system", "content": self.system})
        return messages

    @property
    def changes(self) -> dict[str, Any]:
        """The generation options that were given."""
        given = {
            "max_new_tokens": self.max_new_tokens,
            "temperature": self.temperature,
            "seed": self.seed,
            "stop_strings": self.stop or None,
        }
        return {name: value for name, value in given.items() if value is not None}


def _packed(command: Callable[..., Any], name: str, cls: type) -> Callable[..., Any]:
    """A command that takes its options one by one and gets them as one `cls`, called `name`."""
    fields = [field.name for field in attrs.fields(cls)]

    @functools.wraps(command)
    def call(*arguments: Any, **options: Any) -> Any:
        values = {field: options.pop(field) for field in fields}
        return command(*arguments, **options, **{name: cls(**values)})

    return call


def pipeline_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """PIPELINE and --set, as `source: PipelineSource`."""
    command = settings_option(_packed(command, "source", PipelineSource))
    return click.argument("name", metavar="PIPELINE")(command)


def settings_option(command: F) -> F:
    """--set, which may be repeated."""
    return click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="SECTION.OPTION=VALUE",
        help="Override one option; may be repeated. All apply before validation.",
    )(command)


def request_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The prompt and how it is decoded, as `request: RequestArguments`."""
    command = _packed(command, "request", RequestArguments)
    for option in (
        number_option("--seed", minimum=0, help="Make sampling repeatable."),
        click.option(
            "--stop",
            multiple=True,
            metavar="TEXT",
            help="End the output after this text; may be repeated.",
        ),
        click.option(
            "--temperature", type=float, metavar="T", help="0 is greedy; above 0 samples."
        ),
        number_option("--max-new-tokens", minimum=0, help="Most new tokens."),
        click.option("--system", metavar="TEXT", help="The system's message; implies --chat."),
        click.option(
            "--chat",
            is_flag=True,
            help="Send the prompt as a user's message, by the model's chat template.",
        ),
        click.option(
            "--prompt-file",
            metavar="FILE",
            help="Read the prompt from a file; - reads standard input.",
        ),
        click.option("--prompt", metavar="TEXT", help="The text to continue."),
    ):
        command = option(command)
    return command


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
            content = sys.stdin.buffer.read(MAX_PROMPT_BYTES + 1)
        else:
            with Path(prompt_file).open("rb") as file:
                content = file.read(MAX_PROMPT_BYTES + 1)
        if len(content) > MAX_PROMPT_BYTES:
            reason = f"more than {MAX_PROMPT_BYTES} bytes, which is longer than any context"
            raise RequestError(f"--prompt-file {prompt_file}: {reason}")
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RequestError(f"--prompt-file {prompt_file}: not UTF-8 text") from error
    except (OSError, ValueError) as error:  # of a name with a null byte: ValueError
        cause = getattr(error, "strerror", None) or str(error)
        raise RequestError(f"--prompt-file {prompt_file}: {cause}") from error


def json_option(command: F) -> F:
    """--json."""
    return click.option("as_json", "--json", is_flag=True, help="Print one JSON object instead.")(
        command
    )


def print_json(value: Mapping[str, Any]) -> None:
    """One JSON object on standard output; NaN and infinity never appear in it."""
    ascii_only = not is_utf8(sys.stdout)
    click.echo(json.dumps(value, indent=2, ensure_ascii=ascii_only, allow_nan=False))


def is_utf8(stream: Any) -> bool:
    """Whether a stream can hold every character."""
    return (getattr(stream, "encoding", None) or "utf-8").lower().replace("_", "-") == "utf-8"


def progress_bar() -> "Progress":
    """A bar on standard error that leaves nothing behind; hidden if that is no terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    return Progress(console=console, transient=True, disable=not console.is_terminal)


def table(
    rows: Sequence[tuple[str, ...]], header: tuple[str, ...], width: int | None = None
) -> str:
    """Columns aligned by spaces, readable in a pipe as on a terminal.

    A table that is too wide gets a header of several lines; one that still is becomes a block of
    lines for each row.

    Args:
        rows: The cells.
        header: The names of the columns.
        width: Most characters of a line; by default those of the terminal. Without a terminal the
            header wraps at 80, and rows stay lines.
    """
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    most = width or (shutil.get_terminal_size().columns if known else 80)
    lines = _aligned([header, *rows])
    if _width(lines) <= most:
        return "\n".join(lines)
    rows_in_lines = list(_wrapped_end(rows, header, most))
    lines = _aligned([*_wrapped_header(rows_in_lines, header), *rows_in_lines])
    if _width(lines) <= most or not (width or known):
        return "\n".join(lines)
    return "\n".join(line for row in rows for line in _block(row, header, most))


def _width(lines: Sequence[str]) -> int:
    return max(map(len, lines))


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _wrapped_header(
    rows: Sequence[tuple[str, ...]], header: tuple[str, ...]
) -> list[tuple[str, ...]]:
    """The header's lines, each name broken at blanks and after slashes to its column's width."""
    names = []
    for name, column in zip(header, zip(*rows, strict=True), strict=True):
        words = name.replace("/", "/ ").split(" ")
        limit = max(map(len, (*column, *words)))
        lines = [""]
        for word in words:
            joint = "" if lines[-1].endswith("/") or not lines[-1] else " "
            if len(lines[-1] + joint + word) <= limit:
                lines[-1] += joint + word
            else:
                lines.append(word)
        names.append(lines)
    height = max(map(len, names))
    return list(zip(*([*[""] * (height - len(name)), *name] for name in names), strict=True))


def _wrapped_end(
    rows: Sequence[tuple[str, ...]], header: tuple[str, ...], most: int
) -> Iterator[tuple[str, ...]]:
    """The rows with their last cells wrapped to what the other columns leave of a line."""
    top = _wrapped_header([row[:-1] for row in rows], header[:-1])
    rest = most - _width(_aligned([*top, *(row[:-1] for row in rows)])) - 2
    longest = max(len(word) for row in rows for word in (header[-1] + " " + row[-1]).split())
    for row in rows:
        first, *others = textwrap.wrap(row[-1], max(rest, longest, 1)) or [""]
        yield (*row[:-1], first)
        yield from ((*[""] * (len(row) - 1), line) for line in others)


def _block(row: tuple[str, ...], header: tuple[str, ...], width: int) -> Iterator[str]:
    """A row as its first cell and an indented line for each other one."""
    yield from textwrap.wrap(row[0], width) or [""]
    longest = max(map(len, header))
    for name, cell in zip(header[1:], row[1:], strict=True):
        line = f"  {name.ljust(longest)}  {cell}"
        yield from textwrap.wrap(line, width, subsequent_indent="    ") or [""]


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun: 1 round, 2 rounds. plural: where it is not the noun with an s."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"
