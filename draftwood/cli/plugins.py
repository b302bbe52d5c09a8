"""`draftwood plugins`: what is installed, where it came from, what is broken and why."""

import attrs
import click

from draftwood.cli.app import Session
from draftwood.cli.options import json_option, print_json, table

JSON = {
    "plugins": "[{kind, name, distribution, version, status, cause}]",
    "plugins[].kind": "drafter, tree, controller, verifier, command or observer; null for a "
    "distribution's entry point that failed as a whole or is off",
    "plugins[].status": "ok, failed, duplicate or off",
    "plugins[].cause": "why it is not ok; else null",
}


@click.group("plugins")
def command() -> None:
    """Installed plugins, and why some are not usable.

    Third parties add plugins through the entry-point group `draftwood`. Environment:
    DRAFTWOOD_PLUGINS and DRAFTWOOD_DISABLE_PLUGINS name distributions or entry points, separated
    by commas; DRAFTWOOD_STRICT_PLUGINS=1 makes any broken plugin an error.
    """


@command.command("list")
@json_option
@click.pass_obj
def list_(session: Session, as_json: bool) -> None:
    """List every plugin with its distribution, version and status.

    \b
      draftwood plugins list
      draftwood --no-plugins plugins list --json
    """
    _, commands = session.commands
    records = (*session.registry.records, *commands)
    if as_json:
        print_json({"plugins": [attrs.asdict(record) for record in records]})
        return
    rows = [
        (record.kind or "-", record.name, record.distribution, record.version, record.status)
        for record in records
    ]
    header, *lines = table(rows, ("KIND", "NAME", "DISTRIBUTION", "VERSION", "STATUS")).split("\n")
    click.echo(header)
    for line, record in zip(lines, records, strict=True):
        click.echo(line)
        if record.cause:
            click.echo(f"  {record.cause}")
