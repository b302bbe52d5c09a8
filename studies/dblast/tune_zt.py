"""`python -m studies.dblast tune-zt`: the temperature of a mixture's prior for a pipeline."""

import json
from pathlib import Path
from typing import Any

import click

from draftwood.bench.prompts import load_prompts
from draftwood.cli.app import Session
from draftwood.cli.options import PipelineSource, pipeline_argument, print_json, table
from draftwood.cli.progress import counting
from draftwood.core.build import load_pipeline
from draftwood.core.config.pipeline import PipelineConfig
from draftwood.core.errors import RequestError
from draftwood.core.values import Limits
from draftwood.plugins.verifiers.rules import RULE_DRAWS
from studies.command_line import numbers, text_options
from studies.dblast.replay import Replay
from studies.dblast.tuning import candidate_trees, curve

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
@text_options(temperatures="0.7,1,1.5", tokens=64)
@click.option(
    "--grid",
    metavar="Z,...",
    default="0,0.25,0.5,0.75,1,1.5,2,3,5",
    show_default=True,
    callback=numbers,
    help="Z_T to choose from.",
)
@click.option(
    "--draws",
    metavar="N",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="Trees for each Z_T in a round, where the tree is drawn.",
)
@click.option("--write", is_flag=True, help="Store the table in the checkpoint's config.json.")
@click.pass_obj
def command(
    session: Session,
    source: PipelineSource,
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
    stores it in the checkpoint. Filters are the pipeline's.

    \b
      python -m studies.dblast tune-zt dblast
      python -m studies.dblast tune-zt mine.yaml --temperature 1 --write
    """
    config = source.read(session)
    rule = _rule(config)
    config_file = _writable(config) if write else None
    loaded = load_pipeline(config, registry=session.registry)
    engine, chosen = loaded.engine, load_prompts(prompts, limit)
    assert engine.drafter is not None
    assert engine.tree is not None
    limits = Limits(getattr(_options(config, "controller"), "nodes", 64))
    grow = candidate_trees(engine.tree, rule, limits, grid, draws)
    replay = Replay(loaded.target, [engine.drafter], grow)
    curves = []
    with counting(len(temperatures) * len(chosen)) as step:
        for temperature in temperatures:
            rounds = {}
            for number, prompt in enumerate(chosen):
                request = loaded.request(
                    prompt.encode(loaded.tokenizer),
                    max_new_tokens=tokens,
                    seed=seed + number,
                    temperature=temperature,
                )
                rounds[prompt.id] = replay.rounds(request)
                step(f"T = {temperature:g}, {prompt.id}")
            curves.append(curve(temperature, rounds, grid, seed))
    best = sorted([each["temperature"], each["best"]] for each in curves)
    if config_file is not None:
        _write(config_file, best)
    if as_json:
        about = {"pipeline": source.name, "rule": rule, "curves": curves}
        written = config_file and str(config_file)
        print_json({**about, "prior_temperatures": best, "written": written})
        return
    click.echo(_text(curves, rule))
    click.echo(f"\ndrafter: {{prior_temperature: {json.dumps(best)}}}")
    if config_file is not None:
        click.echo(f"written to {config_file}", err=True)


def _options(config: PipelineConfig, kind: str) -> Any:
    part = getattr(config, kind)
    return None if part is None else part.options


def _rule(config: PipelineConfig) -> str:
    """The verifier's rule.

    Raises:
        RequestError: The drafter has no prior, or the rule's acceptance cannot be computed.
    """
    from draftwood.core.errors import RequestError

    drafter, verifier = config.drafter, config.verifier
    if drafter is None or drafter.traits.form != "mixture":
        used = "no drafter" if drafter is None else f"drafter {drafter.use!r}"
        raise RequestError(f"{config.source}: {used}; only mixtures have a prior (drafter dblast)")
    rule = str(getattr(_options(config, "verifier"), "rule", verifier and verifier.use))
    if rule not in RULE_DRAWS:
        raise RequestError(
            f"{config.source}: the acceptance of {rule!r} cannot be computed; "
            f"choices: {', '.join(RULE_DRAWS)}"
        )
    return rule


def _writable(config: PipelineConfig) -> Path:
    """The checkpoint's config.json, if the checkpoint is a local folder."""
    checkpoint = _options(config, "drafter").checkpoint
    path = Path(checkpoint) / "config.json"
    if str(checkpoint).partition(":")[0] == "builtin" or not path.is_file():
        raise RequestError(
            f"--write: {checkpoint} is not a local folder; put the printed value into the pipeline"
        )
    return path


def _write(path: Path, prior_temperatures: list[list[float]]) -> None:
    """Replace the table in config.json, the rest of it unchanged."""
    data = json.loads(path.read_text(encoding="utf-8"))
    data["dblast_config"] = {
        **(data.get("dblast_config") or {}),
        "prior_temperatures": prior_temperatures,
    }
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
    lines = [f"drafts accepted per round under {rule}, without the bonus token; * is best"]
    for each in curves:
        gain, about = each["gain"], f"{each['prompts']} prompts, {each['rounds']} rounds"
        if gain is not None and gain["low"] is not None:
            about += (
                f"; best over Z_T = 1: {gain['value'] - 1:+.1%} "
                f"({gain['low'] - 1:+.1%} to {gain['high'] - 1:+.1%})"
            )
        lines.append(f"T = {each['temperature']:g}: {about}")
    return "\n".join([table(rows, ("Z_T", *heads)), "", *lines])
