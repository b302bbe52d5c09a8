"""`draftwood convert`: a DFlash checkpoint in the other published layout."""

from pathlib import Path
from typing import Any

import click


@click.command("convert")
@click.argument("checkpoint")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--to",
    "layout",
    required=True,
    type=click.Choice(["zlab", "speculators"]),
    help="The layout to write.",
)
@click.option("--target", metavar="NAME", help="The model that a speculators config shall name.")
def command(checkpoint: str, folder: Path, layout: Any, target: str | None) -> None:
    """Write a checkpoint in another published layout.

    CHECKPOINT is a DFlash drafter: a folder, `builtin`, or a hub name. FOLDER is new or empty.
    Weights are copied bit for bit; the config must mean the same, or nothing is written.

    \b
      draftwood convert path/to/drafter converted --to speculators --target Qwen/Qwen3-8B
    """
    from draftwood.core.checkpoints import fetch
    from draftwood.plugins.drafters.formats.convert import convert

    convert(fetch(checkpoint), folder, layout, target)
    click.echo(str(folder))
