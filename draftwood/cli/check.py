"""`draftwood check`: everything about a pipeline that can be known before weights load."""

from typing import Any

import attrs
import click

from draftwood.cli.app import Session
from draftwood.cli.options import json_option, pipeline_argument, print_json
from draftwood.core.errors import ConfigError
from draftwood.core.registry.plugin import Kind

JSON = {
    "pipeline": "as given",
    "ok": "true if it can be loaded",
    "problems": "[{where, path, message, hints}], empty if ok",
    "remarks": "what is allowed and worth knowing, a sentence each",
    "parts": "{drafter, tree, controller, verifier}: {use, options}, or null; null if not ok",
}


@click.command("check")
@pipeline_argument
@json_option
@click.pass_obj
def command(session: Session, pipeline: str, settings: tuple[str, ...], as_json: bool) -> int:
    """Validate a pipeline without loading weights.

    Reads the file and what it extends, checks every option, and refuses parts that do not work
    together. Every problem is shown, with its file, line and column.

    \b
      draftwood check bastion
      draftwood check pipeline.yaml --set tree.max_nodes=64
    """
    from draftwood.core.config.compose import check_composition, remarks
    from draftwood.core.config.pipeline import load_config

    try:
        config = load_config(pipeline, settings, registry=session.registry)
        check_composition(config, session.registry)
    except ConfigError as error:
        if not as_json:
            raise
        problems = [attrs.asdict(problem) for problem in error.problems]
        print_json(
            {"pipeline": pipeline, "ok": False, "problems": problems, "remarks": [], "parts": None}
        )
        return 2
    parts = {kind.value: config.component(kind) for kind in Kind}
    if as_json:
        print_json(
            {
                "pipeline": pipeline,
                "ok": True,
                "problems": [],
                "remarks": remarks(config),
                "parts": {
                    kind: part and {"use": part.use, "options": _plain(part.options)}
                    for kind, part in parts.items()
                },
            }
        )
        return 0
    click.echo(f"{pipeline}: ok")
    click.echo(f"  {'target':<10}  {config.target.model if config.target else '-'}")
    for kind, part in parts.items():
        click.echo(
            f"  {kind:<10}  {f'{part.use}  {_line(part.options)}' if part else '-'}".rstrip()
        )
    click.echo(f"  {'runtime':<10}  {_line(config.runtime)}")
    for remark in remarks(config):
        click.echo(f"  remark: {remark}")
    return 0


def _plain(options: Any) -> dict[str, Any]:
    """Options as JSON values."""

    def convert(_: Any, __: Any, value: Any) -> Any:
        return (
            value if isinstance(value, (bool, int, float, str, tuple, type(None))) else str(value)
        )

    return attrs.asdict(options, value_serializer=convert)


def _line(options: Any) -> str:
    return ", ".join(f"{name}={value}" for name, value in _plain(options).items())
