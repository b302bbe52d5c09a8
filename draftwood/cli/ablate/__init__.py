"""`draftwood ablate`: what each part of a method is worth, one file per table.

A subcommand's module imports what it needs when it runs, so that listing them costs nothing; its
`JSON` says what `--json` prints.
"""

import click

from draftwood.cli.ablate import budget, dblast


@click.group("ablate")
def command() -> None:
    """Show what each part of a method is worth.

    Each table is printed as Markdown, or as JSON with --json.
    """


command.add_command(budget.command)
command.add_command(dblast.command)
