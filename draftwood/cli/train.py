"""`draftwood train`: a drafter for a target, from a YAML file."""

from pathlib import Path

import click

from draftwood.cli.app import Session
from draftwood.cli.options import settings_option


@click.command("train")
@click.argument("config", type=click.Path(dir_okay=False, path_type=Path))
@settings_option
@click.option(
    "--resume/--restart",
    default=True,
    help="Continue from the last checkpoint (the default), or start again.",
)
@click.pass_obj
def command(session: Session, config: Path, settings: tuple[str, ...], resume: bool) -> None:
    """Train a drafter for a target.

    CONFIG names algorithm, target, texts and sizes. An interrupted run continues from its last
    checkpoint when the same command is given again.

    \b
      draftwood train drafter.yaml --set train.steps=2000
    """
    from draftwood.core.errors import DraftwoodError

    if not config.is_file():
        raise DraftwoodError(f"{config}: no such file")
    from draftwood.training import train
    from draftwood.training.config import load_training

    registry = session.registry
    export = train(config, set_options=settings, resume=resume, registry=registry)
    training = load_training(config, settings, registry)
    click.echo(_finished(training.algorithm, str(training.target), export))


def _finished(algorithm: str, target: str, export: Path) -> str:
    """Where the drafter is, what its number means, and a pipeline to paste."""
    return (
        f"\nThe drafter is in {export}. Its accepted lengths above are tokens committed per round "
        "on held-out text:\nwhat they are worth in time depends on the machine, which `draftwood "
        "bench` measures.\n\n"
        f"target: {{model: {target}}}\n"
        f"drafter: {{use: {algorithm}, checkpoint: {export}}}\n"
    )
