"""`draftwood ablate budget`: what a budget that adapts is worth, in virtual time."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from draftwood.cli.app import Session
from draftwood.cli.options import json_option, print_json, settings_option

if TYPE_CHECKING:
    from draftwood.bench.prompts import Prompt
    from draftwood.core.config.pipeline import PipelineConfig
    from draftwood.core.generation import Pipeline
    from draftwood.plugins.controllers.options import RooflineOptions
    from draftwood.plugins.controllers.roofline.calibration import Calibration
    from studies.budget.recording import Parts, Text

JSON = {
    "machine": "what times were measured on",
    "seed": "of texts and intervals",
    "pipelines": "{name: {times, cells, overall, policies}}",
    "pipelines.*.times": "milliseconds: {draft, grow, other, other_plain, control, forward}",
    "pipelines.*.cells": "[{prompts, temperature, texts, best_fixed, policies}]",
    "pipelines.*.cells.*.policies": "{policy: {tokens, rounds, seconds, tokens_per_round, budget, "
    "ms_per_token, over_plain, over_best_fixed}}",
    "pipelines.*.overall": "{bastion_over_best_fixed_of_each, bastion_over: {policy: ratio}}; a "
    "ratio is {value, low, high}, above 1 where bastion is faster",
    "pipelines.*.policies": "what each policy is",
}


def _temperatures(_: click.Context, __: click.Parameter, value: str) -> tuple[float, ...]:
    try:
        found = tuple(float(part) for part in value.split(","))
    except ValueError as error:
        raise click.BadParameter(f"{value!r}: numbers with commas between them") from error
    if not all(0.0 <= each < 1e3 for each in found):
        raise click.BadParameter(f"{value!r}: temperatures are 0 or above, and finite")
    return found


@click.command("budget")
@click.argument("pipelines", metavar="PIPELINE...", nargs=-1, required=True)
@settings_option
@click.option(
    "--prompts",
    multiple=True,
    default=("builtin:code", "builtin:open"),
    show_default=True,
    metavar="SOURCE",
    help="Prompt sets, as in bench; each is a set of its own. May be repeated.",
)
@click.option(
    "--limit", metavar="N", type=click.IntRange(min=1), help="First N prompts of each set only."
)
@click.option(
    "--temperature",
    "temperatures",
    metavar="T,...",
    default="0,0.7,1",
    show_default=True,
    callback=_temperatures,
    help="Of the target, one table each.",
)
@click.option(
    "--tokens",
    metavar="N",
    type=click.IntRange(min=2),
    default=128,
    show_default=True,
    help="New tokens per prompt.",
)
@click.option(
    "--repeats",
    metavar="N",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="How often each forward is timed; the fastest counts.",
)
@click.option("--seed", metavar="N", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--out",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write budget.md and budget.json there.",
)
@json_option
@click.pass_obj
def command(
    session: Session,
    pipelines: tuple[str, ...],
    settings: tuple[str, ...],
    prompts: tuple[str, ...],
    limit: int | None,
    temperatures: tuple[float, ...],
    tokens: int,
    repeats: int,
    seed: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Compare budgets by replaying recorded rounds.

    Decodes each prompt once and records, at every token, the round that could start there: the
    pipeline's tree and what the text accepts of it. Then walks policies over the record: bastion,
    every fixed budget and the best of them in hindsight, an oracle, random trees and beams of
    equal size, and bastion with one of its parts taken away. Rounds cost what a table of measured
    times says, so that what is compared is decisions and not a timer's noise.

    The pipeline's drafter, tree and verifier are used; its controller's options where it is
    roofline.

    \b
      draftwood ablate budget bastion
      draftwood ablate budget bastion --prompts builtin:code --temperature 0 --limit 4 --json
    """
    from draftwood.bench.machine import machine
    from draftwood.bench.prompts import load_prompts
    from studies.budget.ablation import markdown

    sets = {name: load_prompts([name], limit) for name in prompts}
    found = {
        name: _ablate(session, name, settings, sets, temperatures, tokens, repeats, seed)
        for name in pipelines
    }
    result = {"machine": machine(), "seed": seed, "pipelines": found}
    text = "\n".join(markdown(each, name) for name, each in found.items())
    if out is not None:
        _write(out, {"budget.json": json.dumps(result, indent=1) + "\n", "budget.md": text})
    if as_json:
        print_json(result)
    else:
        click.echo(text)


def _ablate(
    session: Session,
    name: str,
    settings: tuple[str, ...],
    sets: "dict[str, list[Prompt]]",
    temperatures: Sequence[float],
    tokens: int,
    repeats: int,
    seed: int,
) -> dict[str, Any]:
    """One pipeline's tables."""
    from attrs import evolve

    from draftwood.core.config.pipeline import load_config
    from studies.budget import ablation
    from studies.budget.times import stage_times

    config = load_config(name, settings, registry=session.registry)
    parts, loaded = _load(config, session)
    options = _options(config)
    first = next(iter(sets.values()))[0]
    timed = [
        loaded.request(first.encode(loaded.tokenizer), max_new_tokens=tokens, seed=seed + n)
        for n in range(2)
    ]
    calibration = _forwards(parts, repeats)
    probes = [*calibration.fitted, *calibration.held_out]
    texts = {
        (prompts, temperature): _record(parts, loaded, chosen, temperature, tokens, seed)
        for prompts, chosen in sets.items()
        for temperature in temperatures
    }
    times = stage_times(parts, timed, [text for each in texts.values() for text in each], probes)
    known = ablation.machines(calibration.roof, calibration.prices.residuals, times)
    some = next(iter(texts.values()))
    control = ablation.control_seconds(some, times, known[ablation.BASTION], options)
    times = evolve(times, control=control)
    cells = [
        ablation.cell(prompts, temperature, each, times, known, options)
        for (prompts, temperature), each in texts.items()
    ]
    return {"times": times.as_dict(), **ablation.report(cells, seed)}


def _load(config: "PipelineConfig", session: Session) -> "tuple[Parts, Pipeline]":
    """The parts that are replayed, and a plain pipeline of the same target."""
    from attrs import evolve

    from draftwood.core.build import load_pipeline
    from draftwood.core.config.compose import check_composition
    from draftwood.core.errors import RequestError
    from draftwood.core.registry.plugin import Kind, VerifierTraits
    from draftwood.plugins.trees.best_first import BestFirst
    from draftwood.plugins.trees.options import BestFirstOptions
    from studies.budget.recording import SIZES, Parts

    check_composition(config, session.registry)
    if config.drafter is None:
        raise RequestError(f"{config.source} has no drafter: there is no budget to choose")
    verifier = config.component(Kind.VERIFIER)
    if verifier is not None:
        traits = verifier.plugin.traits(verifier.options)
        assert isinstance(traits, VerifierTraits)
        if not traits.seed_parity:
            raise RequestError(
                f"verifier {verifier.use} gives another text for another budget, and budgets are "
                "replayed over one text; use verifier: {use: match}"
            )
    alone = evolve(config, drafter=None, tree=None, controller=None)
    loaded = load_pipeline(alone, registry=session.registry)
    drafter, tree = (config.component(kind) for kind in (Kind.DRAFTER, Kind.TREE))
    assert drafter is not None
    assert tree is not None
    options = tree.options
    if hasattr(options, "max_nodes"):  # as large as any budget that is tried
        options = evolve(options, max_nodes=max(SIZES[-1], options.max_nodes))
    parts = Parts(
        loaded.target,
        drafter.build(),
        tree.entry.build(options),
        loaded.engine.verifier,
        lambda temperature: BestFirst(BestFirstOptions(score_temperature=max(1e-9, temperature))),
    )
    return parts, loaded


def _options(config: "PipelineConfig") -> "RooflineOptions":
    """The controller's, and no more nodes than the pipeline's tree has."""
    from attrs import evolve

    from draftwood.core.registry.plugin import Kind
    from draftwood.plugins.controllers.options import RooflineOptions

    controller, tree = config.component(Kind.CONTROLLER), config.component(Kind.TREE)
    options = RooflineOptions()
    if controller is not None and isinstance(controller.options, RooflineOptions):
        options = controller.options
    most = getattr(tree and tree.options, "max_nodes", options.max_nodes)
    return evolve(options, max_nodes=min(most, options.max_nodes))


def _forwards(parts: "Parts", repeats: int) -> "Calibration":
    """Time forwards, the table that virtual time is read from."""
    import time

    from draftwood.cli.calibrate import measure

    return measure(parts.target.costs(time.perf_counter), repeats)


def _record(
    parts: "Parts",
    loaded: "Pipeline",
    prompts: "Sequence[Prompt]",
    temperature: float,
    tokens: int,
    seed: int,
) -> "list[Text]":
    """The texts of one set at one temperature; those of a single token have no round."""
    import random

    from rich.progress import track

    from draftwood.cli.options import standard_error
    from draftwood.core.errors import RequestError
    from studies.budget.recording import record

    console = standard_error()
    texts = []
    for prompt in track(
        prompts,
        f"recording at {temperature:g}",
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ):
        request = loaded.request(
            prompt.encode(loaded.tokenizer),
            max_new_tokens=tokens,
            temperature=temperature,
            seed=seed,
        )
        texts.append(record(parts, request, prompt.id, random.Random(f"{seed}/{prompt.id}")))
    texts = [text for text in texts if text.rounds]
    if not texts:
        raise RequestError("every text ended with its first token: there is no round to record")
    return texts


def _write(folder: Path, texts: dict[str, str]) -> None:
    from draftwood.core.errors import RequestError

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise RequestError(f"--out {folder}: {error.strerror}") from error
