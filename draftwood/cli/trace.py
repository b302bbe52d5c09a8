"""`draftwood trace`: the trees of the first rounds, drawn."""

from itertools import islice
from pathlib import Path

import click

from draftwood.cli.app import Session
from draftwood.cli.options import (
    PipelineSource,
    RequestArguments,
    counted,
    file_option,
    number_option,
    pipeline_argument,
    request_options,
    write_text,
)


@click.command("trace")
@pipeline_argument
@request_options
@number_option("--rounds", default=3, help="How many to draw.")
@file_option("--svg", help="Write a drawing there instead.")
@click.pass_obj
def command(
    session: Session,
    source: PipelineSource,
    request: RequestArguments,
    rounds: int,
    svg: Path | None,
) -> None:
    """Draw the trees of the first rounds.

    Each node shows its token and path score, which is the drafter's probability of the path to it.
    A * marks the accepted path, which ends in the target's own token, the bonus (+).

    \b
      draftwood trace bastion --prompt "def fibonacci(n):"
      draftwood trace tree-16 --prompt-file code.py --rounds 2 --svg tree.svg
    """
    prompt = request.read_prompt()
    from draftwood.cli import drawing
    from draftwood.core.errors import RequestError

    loaded = source.load(session)
    stream = loaded.stream(prompt, **request.changes)
    drawn = list(islice((chunk.stats for chunk in stream if chunk.stats is not None), rounds))
    if not drawn:
        raise RequestError("the text ended before the first round: raise --max-new-tokens")
    assert loaded.tokenizer is not None  # it has encoded the prompt
    decode = loaded.tokenizer.decode
    if svg is None:
        from rich.console import Console

        console = Console()
        ascii_only = console.options.ascii_only
        for stats in drawn:
            console.print(drawing.caption(stats), style="bold")
            console.print(drawing.text_tree(stats, decode, ascii_only=ascii_only))
        return
    write_text("--svg", svg, drawing.svg(drawn, decode, f"draftwood trace {source.name}"))
    click.echo(f"{svg}: {counted(len(drawn), 'round')}", err=True)
