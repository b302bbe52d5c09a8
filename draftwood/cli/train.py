"""`draftwood train`: a drafter for a target, from a YAML file."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from draftwood.cli.app import Session
from draftwood.cli.options import settings_option

if TYPE_CHECKING:
    from draftwood.core.registry.registry import Registry


@click.command("train")
@click.argument("config", type=click.Path(dir_okay=False, path_type=Path))
@settings_option
@click.option(
    "--new",
    "model",
    metavar="MODEL",
    help="Write a training file for this target: a folder, a hub name or `builtin`. CONFIG is then "
    'the text: .txt, or .jsonl with "text" or "messages" in each line.',
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The training file that --new writes; train.yaml by default.",
)
@click.option(
    "--resume/--restart",
    default=True,
    help="Continue from the last checkpoint (the default), or start again.",
)
@click.pass_obj
def command(
    session: Session,
    config: Path,
    settings: tuple[str, ...],
    model: str | None,
    out: Path | None,
    resume: bool,
) -> None:
    """Train a drafter for a target.

    CONFIG names algorithm, target, texts and sizes. An interrupted run continues from its last
    checkpoint when the same command is given again.

    \b
      draftwood train --new path/to/target text.jsonl --out drafter.yaml
      draftwood train drafter.yaml --set train.steps=2000
    """
    from draftwood.core.errors import DraftwoodError

    if not config.is_file():
        raise DraftwoodError(f"{config}: no such file")
    if model is not None:
        if settings:
            raise click.UsageError("--new writes a file; give --set when it is trained")
        _write_new(model, config, out or Path("train.yaml"))
        return
    if out is not None:
        raise click.UsageError("--out belongs to --new")
    from draftwood.training import train
    from draftwood.training.config import load_training

    registry = session.registry
    export = train(config, set_options=settings, resume=resume, registry=registry)
    training = load_training(config, settings, registry)
    if os.environ.get("RANK", "0") == "0":  # of several processes the first one writes
        click.echo(_finished(registry, training.algorithm, str(training.target), export))


def _write_new(model: str, text: Path, out: Path) -> None:
    from draftwood.training.new import write_training

    written = write_training(model, text, out)
    click.echo(f"Written: {', '.join(map(str, written))}\nNext: draftwood train {out}")


def _finished(registry: "Registry", algorithm: str, target: str, export: Path) -> str:
    """Where the drafter is, what its number means, and a pipeline to paste.

    The pipeline is left out where no drafter of the algorithm's name reads a checkpoint.
    """
    from draftwood.core.registry.plugin import Kind
    from draftwood.core.registry.registry import Registered

    found = registry.find(Kind.DRAFTER, algorithm)
    options = found.plugin.options if isinstance(found, Registered) else None
    pipeline = ""
    if options is not None and hasattr(options, "checkpoint"):
        pipeline = (
            f"\ntarget: {{model: {json.dumps(target)}}}\n"
            f"drafter: {{use: {algorithm}, checkpoint: {json.dumps(str(export))}}}\n"
        )
    return (
        f"\nThe drafter is in {export}. Its accepted lengths above are tokens committed per round "
        "on held-out text:\nwhat they are worth in time depends on the machine, which `draftwood "
        f"bench` measures.\n{pipeline}"
    )
