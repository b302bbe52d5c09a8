"""`draftwood schema`: the JSON Schema of pipelines with the installed plugins."""

from pathlib import Path

import click

from draftwood.cli.app import Session
from draftwood.cli.options import print_json

JSON = {"$schema": "JSON Schema, draft 2020-12: sections, and each plugin's options by its `use`"}


@click.command("schema")
@click.option("--output", metavar="FILE", type=click.Path(path_type=Path), help="Write it there.")
@click.pass_obj
def command(session: Session, output: Path | None) -> None:
    """JSON Schema of pipelines, for editors.

    It covers the plugins that are installed here, third parties' included. Name it in a
    pipeline's first line and an editor completes and checks the file:

    \b
      draftwood schema --output draftwood.schema.json
      # yaml-language-server: $schema=draftwood.schema.json
    """
    import json

    from draftwood.core.config.schema import pipeline_schema
    from draftwood.core.errors import DraftwoodError

    schema = pipeline_schema(session.registry)
    if output is None:
        print_json(schema)
        return
    try:
        output.write_text(json.dumps(schema, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise DraftwoodError(f"--output {output}: {error.strerror}") from error
