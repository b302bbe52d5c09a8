"""`draftwood trace`: the trees of the first rounds, drawn."""

from itertools import islice
from pathlib import Path
from typing import Any

import click

from draftwood.cli.app import Session
from draftwood.cli.options import pipeline_argument, prompt_options, read_prompt, seed_option


@click.command("trace")
@pipeline_argument
@prompt_options
@click.option(
    "--rounds",
    metavar="N",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="How many to draw.",
)
@seed_option
@click.option(
    "--svg", metavar="FILE", type=click.Path(path_type=Path), help="Write a drawing there instead."
)
@click.pass_obj
def command(
    session: Session,
    pipeline: str,
    settings: tuple[str, ...],
    prompt: str | None,
    prompt_file: str | None,
    rounds: int,
    seed: int | None,
    svg: Path | None,
) -> None:
    """Draw the trees of the first rounds.

    Each node shows its token and path score: how likely the drafter holds the path to it. The
    accepted path stands out, and ends in the target's own token, the bonus.

    \b
      draftwood trace bastion --prompt "def fibonacci(n):"
      draftwood trace tree-16 --prompt-file code.py --rounds 2 --svg tree.svg
    """
    text = read_prompt(prompt, prompt_file)
    from draftwood.cli import drawing
    from draftwood.core.build import load_pipeline
    from draftwood.core.errors import DraftwoodError, RequestError

    loaded = load_pipeline(pipeline, settings, registry=session.registry)
    changes: dict[str, Any] = {} if seed is None else {"seed": seed}
    stream = loaded.stream(text, **changes)
    seen = list(islice((chunk.stats for chunk in stream if chunk.stats is not None), rounds))
    if not seen:
        raise RequestError("the text ended before the first round; ask for more new tokens")
    assert loaded.tokenizer is not None  # it has encoded the prompt
    decode = loaded.tokenizer.decode
    if svg is None:
        from rich.console import Console

        console = Console()
        for stats in seen:
            console.print(drawing.caption(stats), style="bold")
            console.print(drawing.text_tree(stats, decode))
        return
    try:
        svg.write_text(drawing.svg(seen, decode, f"draftwood trace {pipeline}"), encoding="utf-8")
    except OSError as error:
        raise DraftwoodError(f"--svg {svg}: {error.strerror}") from error
    click.echo(f"{svg}: {len(seen)} rounds", err=True)
