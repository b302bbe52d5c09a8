"""`draftwood schema`: the JSON Schema of pipelines with the installed plugins."""

from pathlib import Path

import click

from draftwood.cli.app import Session
from draftwood.cli.options import file_option, print_json, write_text

JSON = {"$schema": "JSON Schema, draft 2020-12: sections, and each plugin's options by its `use`"}


@click.command("schema")
@file_option("--output", help="Write it there.")
@click.pass_obj
def command(session: Session, output: Path | None) -> None:
    """JSON Schema of pipelines, for editors.

    It covers the plugins that are installed here, third parties' included. Name the file in a
    pipeline's first line, and an editor completes and checks the pipeline:

    \b
      draftwood schema --output draftwood.schema.json
      # yaml-language-server: $schema=draftwood.schema.json
    """
    import json

    from draftwood.core.config.schema import pipeline_schema

    schema = pipeline_schema(session.registry)
    if output is None:
        print_json(schema)
    else:
        write_text("--output", output, json.dumps(schema, indent=2) + "\n")
