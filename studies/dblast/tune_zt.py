"""`draftwood tune-zt`: choose the temperature of a mixture's prior for a pipeline."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from draftwood.cli.app import Session
from draftwood.cli.options import json_option, numbers, pipeline_argument, print_json, table
from draftwood.cli.progress import counting

if TYPE_CHECKING:
    from draftwood.core.config.pipeline import PipelineConfig

JSON = {
    "pipeline": "as given",
    "rule": "the verification rule that drafts are counted under",
    "curves": "[{temperature, prompts, rounds, points, best, gain}]",
    "curves.*.points": "[{z_t, value, low, high}]: drafts accepted per round, no bonus",
    "curves.*.gain": "{value, low, high} of the best over Z_T = 1; null if that accepts nothing",
    "prior_temperatures": "[[target temperature, Z_T]], as drafter.prior_temperature takes it",
    "written": "the config.json that has it now; null without --write",
}


@click.command("tune-zt")
@pipeline_argument
@click.option(
    "--prompts",
    multiple=True,
    default=("builtin:code", "builtin:open"),
    show_default=True,
    metavar="SOURCE",
    help="Calibration prompts, as in bench. May be repeated.",
)
@click.option(
    "--limit", metavar="N", type=click.IntRange(min=1), help="First N prompts of each set only."
)
@click.option(
    "--temperature",
    "temperatures",
    metavar="T,...",
    default="0.7,1,1.5",
    show_default=True,
    callback=numbers,
    help="Of the target; filters are the pipeline's.",
)
@click.option(
    "--grid",
    metavar="Z,...",
    default="0,0.25,0.5,0.75,1,1.5,2,3,5",
    show_default=True,
    callback=numbers,
    help="Z_T to choose from.",
)
@click.option(
    "--tokens",
    metavar="N",
    type=click.IntRange(min=2),
    default=64,
    show_default=True,
    help="New tokens per prompt.",
)
@click.option(
    "--draws",
    metavar="N",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="Trees for each Z_T in a round, where the tree is drawn.",
)
@click.option("--seed", metavar="N", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--write", is_flag=True, help="Store the table in the checkpoint's config.json.")
@json_option
@click.pass_obj
def command(
    session: Session,
    pipeline: str,
    settings: tuple[str, ...],
    prompts: tuple[str, ...],
    limit: int | None,
    temperatures: tuple[float, ...],
    grid: tuple[float, ...],
    tokens: int,
    draws: int,
    seed: int,
    write: bool,
    as_json: bool,
) -> None:
    """Choose the temperature of a mixture's prior.

    For each target temperature, lets the target write a text after each prompt and computes, at
    every round of it, how many drafts the pipeline's rule would accept of the pipeline's trees at
    each Z_T. Prints the curve and the best Z_T as a value for drafter.prior_temperature; --write
    makes it the checkpoint's own.

    \b
      draftwood tune-zt dblast
      draftwood tune-zt mine.yaml --temperature 1 --write
    """
    from draftwood.bench.prompts import load_prompts
    from draftwood.core.build import load_pipeline
    from draftwood.core.config.compose import check_composition
    from draftwood.core.config.pipeline import load_config
    from draftwood.core.values import Limits
    from studies.dblast.offers import Replay
    from studies.dblast.tuning import curve, offering

    config = load_config(pipeline, settings, registry=session.registry)
    check_composition(config, session.registry)
    rule = _rule(config)
    place = _writable(config) if write else None
    loaded = load_pipeline(config, registry=session.registry)
    engine, chosen = loaded.engine, load_prompts(prompts, limit)
    assert engine.drafter is not None
    assert engine.tree is not None
    limits = Limits(getattr(_options(config, "controller"), "nodes", 64))
    offers = offering(engine.tree, rule, limits, grid, draws)
    replay = Replay(loaded.target, [engine.drafter], offers)
    curves = []
    with counting(len(temperatures) * len(chosen)) as step:
        for heat in temperatures:
            seen = {}
            for number, prompt in enumerate(chosen):
                request = loaded.request(
                    prompt.encode(loaded.tokenizer),
                    max_new_tokens=tokens,
                    seed=seed + number,
                    temperature=heat,
                )
                seen[prompt.id] = replay.rounds(request)
                step(f"T = {heat:g}, {prompt.id}")
            curves.append(curve(heat, seen, grid, seed))
    found = sorted([each["temperature"], each["best"]] for each in curves)
    if place is not None:
        _write(place, found)
    if as_json:
        about = {"pipeline": pipeline, "rule": rule, "curves": curves}
        print_json({**about, "prior_temperatures": found, "written": place and str(place)})
        return
    click.echo(_text(curves, rule))
    click.echo(f"\ndrafter: {{prior_temperature: {json.dumps(found)}}}")
    if place is not None:
        click.echo(f"written to {place}", err=True)


def _options(config: "PipelineConfig", kind: str) -> Any:
    part = getattr(config, kind)
    return None if part is None else part.options


def _rule(config: "PipelineConfig") -> str:
    """The verifier's rule. Raises RequestError where there is no prior or no known rule."""
    from draftwood.core.config.compose import traits_of
    from draftwood.core.errors import RequestError
    from draftwood.plugins.verifiers.acceptance import RULES

    drafter, verifier = config.drafter, config.verifier
    if drafter is None or traits_of(drafter.entry, drafter.options).form != "mixture":
        used = "no drafter" if drafter is None else f"drafter {drafter.use!r}"
        raise RequestError(f"{config.source}: {used}; only mixtures have a prior (drafter dblast)")
    rule = str(getattr(_options(config, "verifier"), "rule", verifier and verifier.use))
    if rule not in RULES:
        raise RequestError(
            f"{config.source}: what {rule!r} accepts is not known; choices: {', '.join(RULES)}"
        )
    return rule


def _writable(config: "PipelineConfig") -> Path:
    """The checkpoint's config.json, if it is a folder of the user's own."""
    from draftwood.core.errors import RequestError

    checkpoint = _options(config, "drafter").checkpoint
    path = Path(checkpoint) / "config.json"
    if str(checkpoint).partition(":")[0] == "builtin" or not path.is_file():
        raise RequestError(
            f"--write: {checkpoint} is no folder of yours; put the printed value into the pipeline"
        )
    return path


def _write(path: Path, found: list[list[float]]) -> None:
    """Replace the table in config.json, the rest of it unchanged."""
    data = json.loads(path.read_text(encoding="utf-8"))
    data["dblast_config"] = {**(data.get("dblast_config") or {}), "prior_temperatures": found}
    partial = path.with_suffix(".json.partial")
    partial.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    partial.replace(path)


def _text(curves: list[dict[str, Any]], rule: str) -> str:
    """A row per Z_T, a column per target temperature, the best marked."""
    rows = []
    for index, point in enumerate(curves[0]["points"]):
        row = [f"{point['z_t']:g}"]
        for each in curves:
            value = each["points"][index]
            interval = "" if value["low"] is None else f" ({value['low']:.3f}-{value['high']:.3f})"
            best = " *" if value["z_t"] == each["best"] else ""
            row.append(f"{value['value']:.3f}{interval}{best}")
        rows.append(tuple(row))
    heads = tuple(f"T = {each['temperature']:g}" for each in curves)
    said = [f"drafts accepted per round under {rule}, the bonus not counted; * is best"]
    for each in curves:
        gain, about = each["gain"], f"{each['prompts']} prompts, {each['rounds']} rounds"
        if gain is not None and gain["low"] is not None:
            about += (
                f"; best over Z_T = 1: {gain['value'] - 1:+.1%} "
                f"({gain['low'] - 1:+.1%} to {gain['high'] - 1:+.1%})"
            )
        said.append(f"T = {each['temperature']:g}: {about}")
    return "\n".join([table(rows, ("Z_T", *heads)), "", *said])
