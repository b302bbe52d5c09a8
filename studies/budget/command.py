"""The command line of the budget study."""

import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from attrs import evolve

from draftwood.bench.machine import machine
from draftwood.bench.prompts import Prompt, load_prompts
from draftwood.cli.app import Session
from draftwood.cli.calibrate import measure
from draftwood.cli.options import settings_option
from draftwood.cli.progress import counting
from draftwood.core.build import load_pipeline
from draftwood.core.config.compose import check_composition
from draftwood.core.config.pipeline import PipelineConfig, load_config
from draftwood.core.errors import RequestError
from draftwood.core.generation import Pipeline
from draftwood.core.registry.plugin import Kind, VerifierTraits
from draftwood.plugins.controllers.options import RooflineOptions
from draftwood.plugins.trees.best_first import BestFirst
from draftwood.plugins.trees.options import BestFirstOptions
from studies.budget import ablation
from studies.budget.recording import SIZES, Parts, RecordedText, record
from studies.budget.times import stage_times
from studies.command_line import out_option, show, text_options

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


@click.command("budget")
@click.argument("pipelines", metavar="PIPELINE...", nargs=-1, required=True)
@settings_option
@text_options(temperatures="0,0.7,1", tokens=128)
@click.option(
    "--repeats",
    metavar="N",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Timings of each forward; the fastest counts.",
)
@out_option("budget.md and budget.json")
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
    """Compare budget policies by replaying recorded rounds.

    Decodes each prompt once and records, at every token, the round that could start there: the
    pipeline's tree and the accepted path through it. Then walks policies over the record: bastion,
    every fixed budget and the best of them in hindsight, an oracle, random trees and beams of
    equal size, and bastion with one of its parts removed. The time of a round is read from a table
    of measured times, so that decisions are compared and not timer noise.

    The pipeline's drafter, tree and verifier are used, and the options of its controller if that
    is roofline.

    \b
      python -m studies.budget bastion
      python -m studies.budget bastion --prompts builtin:code --temperature 0 --limit 4 --json
    """
    prompt_sets = {name: load_prompts([name], limit) for name in prompts}
    reports = {
        name: _study(session, name, settings, prompt_sets, temperatures, tokens, repeats, seed)
        for name in pipelines
    }
    result = {"machine": machine(), "seed": seed, "pipelines": reports}
    text = "\n".join(ablation.markdown(report, name) for name, report in reports.items())
    show("budget", result, text, out, as_json)


def _study(
    session: Session,
    name: str,
    settings: Sequence[str],
    prompt_sets: Mapping[str, Sequence[Prompt]],
    temperatures: Sequence[float],
    tokens: int,
    repeats: int,
    seed: int,
) -> dict[str, Any]:
    """One pipeline's report."""
    config = load_config(name, settings, registry=session.registry)
    parts, plain = _load(config, session)
    options = _controller_options(config)
    first = next(iter(prompt_sets.values()))[0]
    timed = [
        plain.request(first.encode(plain.tokenizer), max_new_tokens=tokens, seed=seed + n)
        for n in range(2)
    ]
    calibration = measure(parts.target.costs(time.perf_counter), repeats)
    probes = [*calibration.fitted, *calibration.held_out]
    texts = {
        (prompt_set, temperature): _record(parts, plain, prompts, temperature, tokens, seed)
        for prompt_set, prompts in prompt_sets.items()
        for temperature in temperatures
    }
    times = stage_times(parts, timed, [text for each in texts.values() for text in each], probes)
    residuals = calibration.model.corrections.residuals
    models = ablation.cost_models(calibration.roof, residuals, times)
    some = next(iter(texts.values()))
    control = ablation.control_seconds(some, times, models[ablation.BASTION], options)
    times = evolve(times, control=control)
    results = [
        ablation.walk_policies(prompt_set, temperature, each, times, models, options)
        for (prompt_set, temperature), each in texts.items()
    ]
    return {"times": times.as_dict(), **ablation.report(results, seed)}


def _load(config: PipelineConfig, session: Session) -> tuple[Parts, Pipeline]:
    """The parts that are replayed, and a plain pipeline of the same target."""
    check_composition(config, session.registry)
    if config.drafter is None:
        raise RequestError(f"{config.source} has no drafter: there is no budget to choose")
    verifier = config.component(Kind.VERIFIER)
    if verifier is not None:
        traits = verifier.traits
        assert isinstance(traits, VerifierTraits)
        if not traits.seed_parity:
            raise RequestError(
                f"verifier {verifier.use}: the text depends on the budget, and budgets are "
                "replayed over one text; use verifier: {use: match}"
            )
    without_draft = evolve(config, drafter=None, tree=None, controller=None)
    plain = load_pipeline(without_draft, registry=session.registry)
    drafter, tree = (config.component(kind) for kind in (Kind.DRAFTER, Kind.TREE))
    assert drafter is not None
    assert tree is not None
    options = tree.options
    if hasattr(options, "max_nodes"):  # as large as the largest budget
        options = evolve(options, max_nodes=max(SIZES[-1], options.max_nodes))
    parts = Parts(
        plain.target,
        drafter.build(),
        tree.entry.build(options),
        plain.engine.verifier,
        lambda temperature: BestFirst(BestFirstOptions(score_temperature=max(1e-9, temperature))),
    )
    return parts, plain


def _controller_options(config: PipelineConfig) -> RooflineOptions:
    """The controller's if it is roofline, with at most as many nodes as the pipeline's tree."""
    controller, tree = config.component(Kind.CONTROLLER), config.component(Kind.TREE)
    options = RooflineOptions()
    if controller is not None and isinstance(controller.options, RooflineOptions):
        options = controller.options
    max_nodes = getattr(tree and tree.options, "max_nodes", options.max_nodes)
    return evolve(options, max_nodes=min(max_nodes, options.max_nodes))


def _record(
    parts: Parts,
    plain: Pipeline,
    prompts: Sequence[Prompt],
    temperature: float,
    tokens: int,
    seed: int,
) -> list[RecordedText]:
    """The texts of one prompt set at one temperature; a text of one token has no round."""
    texts = []
    with counting(len(prompts)) as step:
        for prompt in prompts:
            request = plain.request(
                prompt.encode(plain.tokenizer),
                max_new_tokens=tokens,
                temperature=temperature,
                seed=seed,
            )
            rng = random.Random(f"{seed}/{prompt.id}")
            texts.append(record(parts, request, prompt.id, rng))
            step(f"recorded {prompt.id} at temperature {temperature:g}")
    texts = [text for text in texts if text.rounds]
    if not texts:
        raise RequestError("every text ended with its first token: there is no round to record")
    return texts
