"""`draftwood check`: checks all of a pipeline that can be checked before weights load."""

from importlib.util import find_spec
from typing import Any

import attrs
import click

from draftwood.cli.app import Session
from draftwood.cli.options import PipelineSource, json_option, pipeline_argument, print_json
from draftwood.core.config.pipeline import Component
from draftwood.core.errors import ConfigError
from draftwood.core.registry.plugin import Kind

JSON = {
    "pipeline": "as given",
    "ok": "true if it can be loaded",
    "problems": "[{where, path, message, hints}], empty if ok",
    "remarks": "what is allowed and useful to know, a sentence each",
    "parts": "{drafter, tree, controller, verifier}: {use, options, by_default}, or null; null if "
    "not ok",
    "parts.*.by_default": "true if the pipeline left this part out",
}


@click.command("check")
@pipeline_argument
@json_option
@click.pass_obj
def command(session: Session, source: PipelineSource, as_json: bool) -> int:
    """Validate a pipeline without loading weights.

    Reads the file and what it extends, checks every option, refuses parts that do not work
    together, and imports the code of the plugins. Every problem is shown, with its file, line and
    column.

    \b
      draftwood check bastion
      draftwood check pipeline.yaml --set tree.max_nodes=64
    """
    from draftwood.core.config.compose import check_factories, remarks

    try:
        config = source.read(session)
        # Without torch no plugin can be imported, and all else can still be checked.
        if torch_found := find_spec("torch") is not None:
            check_factories(config)
    except ConfigError as error:
        if not as_json:
            raise
        problems = [attrs.asdict(problem) for problem in error.problems]
        print_json(
            {
                "pipeline": source.name,
                "ok": False,
                "problems": problems,
                "remarks": [],
                "parts": None,
            }
        )
        return 2
    parts = {kind.value: config.component(kind) for kind in Kind}
    sentences = remarks(config)
    if not torch_found:
        sentences.append("the plugins' code was not imported: torch is not installed")
    if as_json:
        described = {kind: part and _described(part) for kind, part in parts.items()}
        result = {"pipeline": source.name, "ok": True, "problems": []}
        print_json({**result, "remarks": sentences, "parts": described})
        return 0
    rows = [("target", str(config.target.model) if config.target else "-")]
    for kind, part in parts.items():
        text = f"{part.use}  {_line(part.options)}".rstrip() if part else "-"
        rows.append((kind, f"{text}  (chosen by default)" if part and part.by_default else text))
    click.echo(f"{source.name}: ok")
    for name, text in (*rows, ("runtime", _line(config.runtime))):
        click.echo(f"  {name:<10}  {text}")
    for sentence in sentences:
        click.echo(f"  remark: {sentence}")
    return 0


def _described(part: Component) -> dict[str, Any]:
    return {"use": part.use, "options": _plain(part.options), "by_default": part.by_default}


def _plain(options: Any) -> dict[str, Any]:
    """Options as JSON values."""
    plain = (bool, int, float, str, tuple, type(None))
    return attrs.asdict(
        options,
        value_serializer=lambda _, __, value: value if isinstance(value, plain) else str(value),
    )


def _line(options: Any) -> str:
    return ", ".join(f"{name}={value}" for name, value in _plain(options).items())
