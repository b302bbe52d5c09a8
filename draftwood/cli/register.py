"""Commands of draftwood itself that are added as a plugin's would be. Imports no torch."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from draftwood.core.registry.hookspecs import hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def draftwood_register_commands() -> "Iterable[click.Command]":
    from draftwood.cli import ablate, tune_zt

    return [ablate.command, tune_zt.command]
