"""`draftwood demo`: builtin pipelines on the bundled model, timed side by side."""

import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from draftwood.cli.app import Session
from draftwood.cli.options import (
    counted,
    json_option,
    number_option,
    print_json,
    progress_bar,
    table,
)

if TYPE_CHECKING:
    from draftwood.cli.timing import Decoder, Timed
    from draftwood.core.generation import Pipeline

PIPELINES = (
    "plain",
    "dflash",
    "tree-8",
    "tree-16",
    "tree-32",
    "tree-64",
    "eagle-static",
    "bastion",
)
HF = "hf-generate"
JSON = {
    "identical": "true if every pipeline and Hugging Face generate gave the same tokens",
    "pipelines": "{name: {seconds, accepted_length, tokens_per_second, tokens}}; names: "
    + ", ".join((*PIPELINES, HF)),
    "pipelines.*.seconds": "one total over all prompts per repetition",
    "pipelines.*.accepted_length": "tokens per round, bonus included; null for hf-generate",
    "pipelines.*.tokens_per_second": "new tokens by the median repetition",
    "pipelines.*.tokens": "ids of the new tokens, a list per prompt",
    "machine": "{platform, processor, accelerator, cores, threads, python, torch, transformers, "
    "draftwood}",
}
COLUMNS = ("pipeline", "tokens/s", "speedup over plain", "tokens/round", "same text")
SPEEDUP = (
    "speedup over plain: seconds of plain divided by seconds of the pipeline, both over all "
    "prompts; median (lowest-highest) of {repetitions}"
)


@click.command("demo")
@json_option
@click.option("--markdown", is_flag=True, help="Print the table as Markdown, without the text.")
@number_option("--repetitions", default=3, help="How often each pipeline decodes every prompt.")
@number_option("--tokens", default=64, help="New tokens per prompt.")
@click.pass_obj
def command(session: Session, as_json: bool, markdown: bool, repetitions: int, tokens: int) -> int:
    """Time builtin pipelines of the bundled DFlash drafter.

    Streams text from the bastion pipeline, then decodes the same prompts with plain decoding, the
    drafter's chain, fixed trees, EAGLE's shape, bastion and Hugging Face's generate, interleaved,
    greedily, in float32. Exits with 1 if any of them gave other tokens than the others.

    \b
      draftwood demo
      draftwood demo --json --repetitions 5
    """
    if as_json and markdown:
        raise click.UsageError("give one of --json and --markdown")
    from draftwood.bench.machine import machine
    from draftwood.cli.prompts import PROMPTS
    from draftwood.cli.timing import side_by_side
    from draftwood.core.build import load_pipeline

    plain = load_pipeline("plain", registry=session.registry)
    given: dict[str, Any] = {
        "target": plain.target,
        "tokenizer": plain.tokenizer,
        "registry": session.registry,
    }
    pipelines = {"plain": plain}
    # Bastion first, since the reader waits for its text; this also warms it up.
    pipelines["bastion"] = load_pipeline("bastion", **given)
    for prompt in PROMPTS:
        _show(pipelines["bastion"], prompt, tokens, quiet=as_json or markdown)
    for name in PIPELINES:
        if name not in pipelines:
            pipelines[name] = load_pipeline(name, **given)
    decoders = {name: _decoder(pipelines[name], tokens) for name in PIPELINES}
    decoders[HF] = _hf_decoder(plain, tokens)
    encoded = [plain.request(prompt).prompt for prompt in PROMPTS]
    for decode in decoders.values():
        decode(encoded[0])
    with progress_bar() as bar:
        task = bar.add_task("timing", total=len(decoders) * repetitions * len(encoded))
        timed = side_by_side(
            decoders,
            encoded,
            repetitions,
            progress=lambda name: bar.update(task, advance=1, description=name),
        )
    identical = all(result.tokens == timed["plain"].tokens for result in timed.values())
    if as_json:
        results = {name: result.as_dict() for name, result in timed.items()}
        print_json({"identical": identical, "pipelines": results, "machine": machine()})
    else:
        click.echo(render(timed, machine(), markdown=markdown))
    if not identical:
        click.echo("the pipelines did not all give the same tokens", err=True)
    return 0 if identical else 1


def render(timed: "Mapping[str, Timed]", on: Mapping[str, Any], *, markdown: bool) -> str:
    """The table of a demonstration, with the machine that it was measured on."""
    from draftwood.cli.timing import ratios

    rows = []
    for name, result in timed.items():
        faster = ratios(result, timed["plain"])
        length = result.accepted_length
        rows.append(
            (
                name,
                f"{result.tokens_per_second:.1f}",
                f"{statistics.median(faster):.2f} ({min(faster):.2f}-{max(faster):.2f})",
                "-" if length is None else f"{length:.2f}",
                "yes" if result.tokens == timed["plain"].tokens else "NO",
            )
        )
    repetitions = counted(len(timed["plain"].seconds), "repetition")
    speedup = SPEEDUP.format(repetitions=repetitions)
    place = (
        f"{on['processor']}, {counted(on['threads'], 'thread')}, torch {on['torch']}, "
        f"transformers {on['transformers']}, float32, greedy"
    )
    if not markdown:
        return f"{table(rows, COLUMNS)}\n\n{speedup}\n{place}"
    lines = [COLUMNS, ("---", *["---:"] * (len(COLUMNS) - 2), "---"), *rows]
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{body}\n\n{speedup}. `draftwood demo --markdown` on {place}."


def _show(pipeline: "Pipeline", prompt: str, tokens: int, *, quiet: bool) -> None:
    """Stream one prompt's text, unless quiet: then only decode it."""
    if not quiet:
        click.secho(prompt, nl=False, dim=True)
    for chunk in pipeline.stream(prompt, max_new_tokens=tokens):
        if not quiet:
            click.echo(chunk.text or "", nl=False)
    if not quiet:
        click.echo("\n")


def _decoder(pipeline: "Pipeline", tokens: int) -> "Decoder":
    from draftwood.cli.timing import Outcome

    def decode(prompt: Any) -> Outcome:
        result = pipeline.generate(prompt, max_new_tokens=tokens)
        return Outcome(result.tokens, result.stats)

    return decode


def _hf_decoder(pipeline: "Pipeline", tokens: int) -> "Decoder":
    """Hugging Face's own loop on the same model object."""
    from draftwood.cli.timing import Outcome
    from draftwood.core.hf.baselines import HFGenerate

    options = pipeline.generation.override({"max_new_tokens": tokens})
    generate = HFGenerate(pipeline.target, options)

    def decode(prompt: Any) -> Outcome:
        return Outcome(generate(prompt, seed=0).tokens)

    return decode
