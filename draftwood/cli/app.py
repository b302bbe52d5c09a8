"""The command group: the bundled commands, and those that third parties add."""

from functools import cached_property
from importlib import import_module
from typing import Any

import click

import draftwood
from draftwood.core.registry.registry import PluginRecord, Registry
from draftwood.core.renames import COMMANDS as MOVED
from draftwood.core.suggestions import did_you_mean

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
"""Commands and their first help line, so that help imports no command. Simple ones first."""


class Session:
    """What every command shares: the plugins that it may use.

    Attributes:
        third_parties: Whether third parties' plugins are loaded.
    """

    def __init__(self, third_parties: bool) -> None:
        self.third_parties = third_parties

    @cached_property
    def registry(self) -> Registry:
        from draftwood.core.registry.loader import installed, load_plugins

        return installed() if self.third_parties else load_plugins(third_parties=False)

    @cached_property
    def commands(self) -> tuple[dict[str, click.Command], list[PluginRecord]]:
        """Third parties' commands by name, and the record of each command."""
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
        """The first line of each command's help."""
        added, _ = session_of(ctx).commands
        rows = [*COMMANDS.items()]
        rows += [(name, added[name].get_short_help_str()) for name in sorted(added)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Click's, but an unknown name shows where it moved, or the plugins that failed to load."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            session, name = session_of(ctx), args[0]
            records = (*session.registry.records, *session.commands[1])
            failures = [str(record) for record in records if record.status == "failed"]
            message = f"no command {name!r}{did_you_mean(name, self.list_commands(ctx))}"
            if name in MOVED:
                message = f"{name!r} is now `{MOVED[name]}`, in draftwood's source repository"
            lines = dict.fromkeys([message, *failures])
            raise click.UsageError("\n  ".join(lines), ctx) from error


def session_of(ctx: click.Context) -> Session:
    """The session of a context, made here if `--help` comes before `--no-plugins`."""
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
    """Decode text from a causal language model faster, without changing its text.

    A PIPELINE is a builtin name or a YAML file. Start with:

    \b
      draftwood demo
      draftwood run bastion --prompt "def fibonacci(n):"
      draftwood check bastion --set tree.max_nodes=32
    """
