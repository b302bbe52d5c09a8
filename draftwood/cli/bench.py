"""`draftwood bench`: pipelines measured beside each other, with reports."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from draftwood.cli.app import Session
from draftwood.cli.options import json_option, number_option, print_json, settings_option, table

if TYPE_CHECKING:
    from draftwood.bench.journal import Journal
    from draftwood.bench.measuring import Plan
    from draftwood.core.values import RoundStats

JSON = {
    "partial": "true if requests are missing; {done, planned} say how many",
    "command": "what was run; `machine`, `seed`, `repeat`, `prompts`, `groups`: on what",
    "contestants": "{name: {kind, plain, hf, same_tokens_promised, target, drafter, ...}}: what "
    "each is, with every option, and whom it is compared with",
    "results": "{name: {overall: numbers, GROUP: numbers, ...}}; groups if there are several",
    "results.*.*.tokens_per_second": "{value, low, high}",
    "results.*.*.ms_per_token": "{median, low, high, count} over requests",
    "results.*.*.speedup_over_plain": "{value, low, high}; also `speedup_over_hf`",
    "results.*.*.speedup_over_reference": "{value, low, high} over `reference`, with --against",
    "results.*.*.speedup_by_prompt": "{median, low, high, count}",
    "results.*.*.accepted_length": "{pooled, by_request, ..._without_bonus}",
    "results.*.*.acceptance_by_depth": "[{depth, rounds, share}]",
    "results.*.*.budget": "{mean, max, histogram: {nodes: rounds}}",
    "results.*.*.passes": "runs of the drafter's model a round",
    "results.*.*.timings": "{stage: {seconds, share}}",
    "results.*.*.kernels": "{name: {launches, per_round}}; empty where no kernels run",
    "results.*.*.near_ties": "decisions that rounding could have changed",
    "results.*.*.peak_memory": "bytes",
    "results.*.*.same_tokens": "{promised, compared, same, largest_margin}",
    "results.*.*.forecast": "{rounds, seconds_error, expected_tokens, committed_tokens, "
    "chosen_budget, best_budget}; null where the controller predicts nothing",
    "rooflines": "{name: {context, tokens, compute, memory, expected, rounds}}: seconds of "
    "forwards by their tokens, and [{tokens, count, seconds}] of the rounds; of controllers with "
    "two roofs",
    "differences": "[{contestant, prompt, repetition, position, margin, rounding, promised}]: "
    "texts that left plain decoding's",
    "formulas": "how each number is computed",
}


@click.command("bench")
@click.argument("pipelines", metavar="PIPELINE...", nargs=-1, required=True)
@settings_option
@click.option(
    "--prompts",
    multiple=True,
    default=("builtin:code",),
    show_default=True,
    metavar="SOURCE",
    help="builtin:code, builtin:open, a .jsonl file, or a benchmark as NAME:FILE; may be repeated.",
)
@number_option("--limit", help="First N prompts of each source only.")
@number_option("--repeat", default=1, help="How often each pipeline decodes every prompt.")
@number_option("--tokens", help="New tokens per prompt, instead of the pipelines' own numbers.")
@click.option(
    "--baseline",
    "baselines",
    metavar="NAME,...",
    default="",
    help="Also hf-generate, hf-prompt-lookup, hf-assisted: transformers' own decoding.",
)
@click.option("--assistant", metavar="MODEL", help="The small model of hf-assisted.")
@number_option(
    "--lookup-tokens", default=10, help="Most tokens that hf-prompt-lookup proposes at once."
)
@click.option(
    "--against",
    metavar="NAME",
    help="Compare each with this one too, in pairs with an interval: a pipeline or baseline here.",
)
@number_option(
    "--seed",
    default=0,
    minimum=0,
    help="Of sampling and of intervals; repetition r decodes with N + r.",
)
@click.option(
    "--out",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write reports there, and continue an interrupted run from there.",
)
@json_option
@click.pass_obj
def command(
    session: Session,
    pipelines: tuple[str, ...],
    settings: tuple[str, ...],
    prompts: tuple[str, ...],
    limit: int | None,
    repeat: int,
    tokens: int | None,
    baselines: str,
    assistant: str | None,
    lookup_tokens: int,
    against: str | None,
    seed: int,
    out: Path | None,
    as_json: bool,
) -> int:
    """Measure pipelines beside each other.

    Every pipeline decodes every prompt, interleaved prompt by prompt, beside plain decoding of
    the same target. Prints speed, speedup with its interval, tokens per round, and whether the
    texts are plain decoding's. With --out it also writes report.json, .csv, .md, .html and .jsonl
    (Spec-Bench's format). An interrupt leaves a partial report; the same command continues it.

    Exits with 1 if a text differs from plain decoding's although the pipeline promises the same.

    \b
      draftwood bench dflash tree-16 bastion --out results
      draftwood bench dflash tree-16 bastion --against bastion --repeat 3
      draftwood bench bastion --prompts builtin:open --baseline hf-generate
      draftwood bench mine.yaml ngram --prompts humaneval:HumanEval.jsonl --limit 20 --json
    """
    from draftwood.bench import reports
    from draftwood.bench.comparing import differences
    from draftwood.bench.contestants import Baselines, load_contestants
    from draftwood.bench.journal import Journal
    from draftwood.bench.machine import machine
    from draftwood.bench.measuring import Plan
    from draftwood.bench.prompts import load_prompts
    from draftwood.bench.summary import summarise
    from draftwood.core.errors import RequestError

    names = tuple(name.strip() for name in baselines.split(",") if name.strip())
    loaded = load_prompts(prompts, limit)
    contestants = load_contestants(
        pipelines,
        settings,
        tokens=tokens,
        baselines=Baselines(names, lookup_tokens, assistant),
        registry=session.registry,
    )
    choices = [each.name for each in contestants]
    if against is not None and against not in choices:
        raise RequestError(f"--against {against}: choices here: {', '.join(choices)}")
    plan, on = Plan(contestants, loaded, repeat, seed), machine()
    journal = Journal(out / "journal.jsonl" if out else None, plan.header(on))
    whole = _measure(plan, journal)
    differ = differences(plan, journal.records)
    report = summarise(
        plan, journal.records, differ, machine=on, command=_command_line(), reference=against
    )
    if out is not None:
        records = [journal.records[key] for key in plan.order() if key in journal.records]
        written = reports.write(out, report, records)
        click.echo(f"written: {', '.join(str(path) for path in written)}", err=True)
    if as_json:
        print_json(report)
    else:
        click.echo(_text(report))
    if not whole:
        raise KeyboardInterrupt
    broken = [each for each in differ if each.broken]
    for each in broken:
        click.echo(
            f"{each.contestant}, prompt {each.prompt}: not plain decoding's text from token "
            f"{each.position} on" + ("" if each.margin is None else f", margin {each.margin:.2g}"),
            err=True,
        )
    return 1 if broken else 0


def _measure(plan: "Plan", journal: "Journal") -> bool:
    """Fill the journal; False if it was interrupted before that was done."""
    from draftwood.bench.measuring import measure
    from draftwood.cli.live import Live

    with Live(plan, journal) as live:
        try:
            for record in measure(plan, journal, draw=_drawing):
                live.show(record)
        except KeyboardInterrupt:
            return False
    return True


def _drawing(stats: "RoundStats", decode: Callable[[Sequence[int]], str]) -> str:
    from draftwood.cli.drawing import svg

    return svg([stats], decode, "a draft tree")


def _text(report: Mapping[str, Any]) -> str:
    """A table per group and one of all prompts."""
    from draftwood.bench.reports.tables import KERNELS, columns, kernels, place, rows
    from draftwood.bench.summary import OVERALL

    several = len(report["groups"]) > 1
    parts = []
    for group in (*(report["groups"] if several else ()), OVERALL):
        parts += [f"{group}:"] if several else []
        parts.append(table(rows(report, group), columns(report)) + "\n")
    if launched := kernels(report):
        parts.append(table(launched, KERNELS) + "\n")
    if report["partial"]:
        parts.append(f"partial: {report['done']} of {report['planned']} requests")
    return "\n".join([*parts, place(report)])


def _command_line() -> str:
    """The command as it was given, defaults left out."""
    context = click.get_current_context()
    words = ["draftwood", "bench"]
    for param in context.command.params:
        assert param.name
        source = context.get_parameter_source(param.name)
        if source is click.core.ParameterSource.DEFAULT:
            continue
        value = context.params[param.name]
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(param, click.Option):
                words.append(param.opts[0])
            if each is not True:
                words.append(str(each))
    return shlex.join(words)
