"""The command group: which commands there are, and how third parties add theirs."""

import difflib
from functools import cached_property
from importlib import import_module
from typing import Any

import click

import draftwood
from draftwood.core.registry.registry import PluginRecord, Registry

COMMANDS = {
    "run": "Decode a prompt and stream the text.",
    "demo": "Time builtin pipelines of the bundled DFlash drafter.",
    "bench": "Measure pipelines beside each other.",
    "calibrate": "Measure a target's forwards on this machine.",
    "trace": "Draw the trees of the first rounds.",
    "check": "Validate a pipeline without loading weights.",
    "lossless": "Show that a pipeline keeps its target's output.",
    "plugins": "Installed plugins, and why some are not usable.",
    "schema": "JSON Schema of pipelines, for editors.",
    "train": "Train a drafter for a target.",
    "inspect": "Say what a drafter checkpoint is, and whether it can be used.",
    "convert": "Write a checkpoint in another published layout.",
    "doctor": "What this machine and installation can do.",
}
"""Commands and their first help line, known without importing them. In teaching order."""


class Session:
    """What every command shares: which plugins count."""

    def __init__(self, third_parties: bool) -> None:
        self.third_parties = third_parties

    @cached_property
    def registry(self) -> Registry:
        from draftwood.core.registry.loader import installed, load_plugins

        return installed() if self.third_parties else load_plugins(third_parties=False)

    @cached_property
    def commands(self) -> tuple[dict[str, click.Command], list[PluginRecord]]:
        """Third parties' commands by name, and the record of each."""
        return self.registry.commands(taken=COMMANDS)


class LazyGroup(click.Group):
    """Imports a command's module when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        added, _ = session_of(ctx).commands
        return [*COMMANDS, *sorted(added)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS:
            module = import_module(f"draftwood.cli.{cmd_name}")
            command: click.Command = module.command
            return command
        added, _ = session_of(ctx).commands
        return added.get(cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The first help lines, from the table where it has them: help imports no command."""
        rows = []
        for name in self.list_commands(ctx):
            line = COMMANDS.get(name)
            if line is None:
                command = self.get_command(ctx, name)
                line = command.get_short_help_str() if command else ""
            rows.append((name, line))
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but an unknown name shows what failed to load and might have had it."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            session = session_of(ctx)
            lines = [
                f"'{line.distribution} {line.version}' failed to load ({line.cause}); "
                "see `draftwood plugins list`"
                for line in (*session.registry.records, *session.commands[1])
                if line.status == "failed"
            ]
            close = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            suggestion = f"no command {args[0]!r}" + (
                f"; did you mean {close[0]!r}?" if close else ""
            )
            message = "\n  ".join([suggestion, *dict.fromkeys(lines)])
            raise click.UsageError(message, ctx) from error


def session_of(ctx: click.Context) -> Session:
    """The session of a context: `--help` can come before the option that makes one."""
    if not isinstance(ctx.obj, Session):
        ctx.obj = Session(third_parties=True)
    return ctx.obj


def _no_plugins(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    ctx.obj = Session(third_parties=not value)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--no-plugins",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_no_plugins,
    help="Load the bundled plugins only.",
)
@click.version_option(draftwood.__version__, prog_name="draftwood")
def app(**_: Any) -> None:
    """Decode text from a causal language model faster, with exactly the text it would have said.

    A PIPELINE is a builtin name or a YAML file. Start with:

    \b
      draftwood demo
      draftwood run bastion --prompt "def fibonacci(n):"
      draftwood check bastion --set tree.max_nodes=32
    """
