"""`draftwood run`: decode one prompt."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from draftwood.cli.app import Session
from draftwood.cli.options import (
    PipelineSource,
    RequestArguments,
    counted,
    json_option,
    pipeline_argument,
    print_json,
    request_options,
)

if TYPE_CHECKING:
    from draftwood.core.generation import Chunk, Generation

JSON = {
    "text": "the new text; null without a tokenizer",
    "tokens": "ids of the new tokens",
    "top_logprobs": "[[token, log-probability], ...] of each place, with generation.top_logprobs",
    "logprobs": "of each new token under the model itself, with generation.logprobs; else null",
    "finish_reason": "eos, stop_string, length or context",
    "seed": "the seed that reproduces it",
    "rounds": "how many; the first token belongs to the prefill, not to a round",
    "accepted": "draft tokens accepted",
    "rejected": "rounds that ended at a rejected draft token",
    "accepted_length": "tokens per round, bonus included; null without rounds",
    "accepted_length_without_bonus": "draft tokens per round; null without rounds",
    "acceptance_by_depth": "accepted share at depth 1, 2, ... of the rounds that drafted so deep",
    "budget": "{mean, min, max} of draft nodes verified a round",
    "timings": "{prefill, draft, grow, verify, judge, commit, other} in seconds",
    "tokens_per_second": "new tokens by the sum of the timings",
    "speculation": "{ran, reason}: whether drafts were made, and if not, why not",
    "verifier": "name of the verifier, its rule where it has several, and what auto picked",
    "kernels": "{name: launches} for this request; empty where no kernels run",
    "near_ties": "decisions that rounding could have changed, where the verifier counts them",
}


@click.command("run")
@pipeline_argument
@request_options
@json_option
@click.pass_obj
def command(
    session: Session, source: PipelineSource, request: RequestArguments, as_json: bool
) -> None:
    """Decode a prompt and stream the text.

    The text goes to standard output round by round, a summary to standard error.

    \b
      draftwood run bastion --prompt "def fibonacci(n):"
      draftwood run plain --prompt-file story.txt --temperature 0.8 --seed 7
      draftwood run mine.yaml --chat --prompt "What is a trie?" --max-new-tokens 300
      git log -1 | draftwood run ngram --prompt-file - --json
    """
    prompt = request.read_prompt()
    loaded = source.load(session)
    if as_json:
        print_json(loaded.generate(prompt, **request.changes).as_dict())
        return
    result = _echo(loaded.stream(prompt, **request.changes))
    click.echo()
    click.echo(summary(result), err=True)


def summary(result: "Generation") -> str:
    """One line on a finished request."""
    parts = [counted(len(result.tokens), "token"), f"stopped by {result.finish_reason}"]
    if result.seconds > 0:
        parts.append(f"{len(result.tokens) / result.seconds:.1f} tokens/s")
    if result.stats.accepted_length is not None:
        parts.append(f"{result.stats.accepted_length:.2f} tokens a round")
    if not result.speculation["ran"]:
        parts.append(f"no speculation: {result.speculation['reason']}")
    if kernels := result.stats.kernels:
        parts.append(f"{kernels.total()} launches of {len(kernels)} kernels")
    if result.stats.near_ties:
        ties = counted(result.stats.near_ties, "decision")
        parts.append(f"{ties} that rounding could change")
    return ", ".join(parts)


def _echo(stream: "Iterator[Chunk]") -> "Generation":
    """Print a stream's text as it is produced; returns the stream's result."""
    while True:
        try:
            chunk = next(stream)
        except StopIteration as end:
            result: Generation = end.value
            return result
        click.echo(chunk.text or "", nl=False)
