"""`draftwood trace`: the trees of the first rounds, drawn."""

from itertools import islice
from pathlib import Path
from typing import Any

import click

from draftwood.cli.app import Session
from draftwood.cli.options import (
    file_option,
    number_option,
    pipeline_argument,
    prompt_options,
    read_prompt,
    write_text,
)


@click.command("trace")
@pipeline_argument
@prompt_options
@number_option("--rounds", default=3, help="How many to draw.")
@file_option("--svg", help="Write a drawing there instead.")
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

    Each node shows its token and path score, which is the drafter's probability of the path to it.
    The accepted path is highlighted; it ends in the target's own token, the bonus.

    \b
      draftwood trace bastion --prompt "def fibonacci(n):"
      draftwood trace tree-16 --prompt-file code.py --rounds 2 --svg tree.svg
    """
    text = read_prompt(prompt, prompt_file)
    from draftwood.cli import drawing
    from draftwood.core.build import load_pipeline
    from draftwood.core.errors import RequestError

    loaded = load_pipeline(pipeline, settings, registry=session.registry)
    changes: dict[str, Any] = {} if seed is None else {"seed": seed}
    stream = loaded.stream(text, **changes)
    drawn = list(islice((chunk.stats for chunk in stream if chunk.stats is not None), rounds))
    if not drawn:
        raise RequestError("the text ended before the first round: raise generation.max_new_tokens")
    assert loaded.tokenizer is not None  # it has encoded the prompt
    decode = loaded.tokenizer.decode
    if svg is None:
        from rich.console import Console

        console = Console()
        for stats in drawn:
            console.print(drawing.caption(stats), style="bold")
            console.print(drawing.text_tree(stats, decode))
        return
    write_text("--svg", svg, drawing.svg(drawn, decode, f"draftwood trace {pipeline}"))
    click.echo(f"{svg}: {len(drawn)} rounds", err=True)
