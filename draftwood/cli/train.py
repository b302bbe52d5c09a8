"""`draftwood train`: a drafter for a target, from a YAML file."""

from pathlib import Path

import click

from draftwood.cli.options import settings_option


@click.command("train")
@click.argument("config", type=click.Path(dir_okay=False, path_type=Path))
@settings_option
@click.option(
    "--resume/--restart",
    default=True,
    help="Go on from the last checkpoint (the default), or start anew.",
)
def command(config: Path, settings: tuple[str, ...], resume: bool) -> None:
    """Train a drafter for a target.

    CONFIG names algorithm, target, texts and sizes. An interrupted run goes on from its last
    checkpoint when the same command is given again.

    \b
      draftwood train drafter.yaml --set train.steps=2000
    """
    from draftwood.core.errors import DraftwoodError

    if not config.is_file():
        raise DraftwoodError(f"{config}: no such file")
    from draftwood.training import train

    train(config, set_options=settings, resume=resume)
