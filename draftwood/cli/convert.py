"""`draftwood convert`: a drafter's checkpoint in another published layout."""

from pathlib import Path
from typing import Any

import click


def _layers(_: click.Context, __: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    try:
        return None if value is None else tuple(int(layer) for layer in value.split(","))
    except ValueError:
        raise click.BadParameter(f"{value!r} is no list of layers like 1,15,28") from None


@click.command("convert")
@click.argument("checkpoint")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--to",
    "layout",
    required=True,
    type=click.Choice(["zlab", "speculators", "transformers", "eagle"]),
    help="The layout to write: the first three for DFlash, speculators and eagle for EAGLE-3.",
)
@click.option(
    "--target",
    metavar="NAME",
    help="The model that a speculators config shall name; its folder, where the checkpoint does "
    "not say how large the vocabulary is.",
)
@click.option(
    "--taps",
    metavar="LAYERS",
    callback=_layers,
    help="0-based target layers, as 1,15,28, of an EAGLE-3 checkpoint that does not name them.",
)
def command(
    checkpoint: str,
    folder: Path,
    layout: Any,
    target: str | None,
    taps: tuple[int, ...] | None,
) -> None:
    """Write a checkpoint in another published layout.

    CHECKPOINT is a DFlash or EAGLE-3 drafter: a folder, `builtin`, or a hub name. FOLDER is new
    or empty. Weights keep their bits; the config must mean the same, or nothing is written.

    \b
      draftwood convert path/to/drafter converted --to speculators --target Qwen/Qwen3-8B
      draftwood convert path/to/eagle3 converted --to speculators --taps 1,15,28
    """
    from draftwood.core.checkpoints import fetch
    from draftwood.plugins.drafters.formats.convert import convert

    convert(fetch(checkpoint), folder, layout, target, taps)
    click.echo(str(folder))
