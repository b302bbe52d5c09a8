"""`draftwood ablate dblast`: what a mixture of branches is worth beside independent drafting."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from draftwood.cli.app import Session
from draftwood.cli.options import json_option, numbers, print_json
from draftwood.cli.progress import counting

if TYPE_CHECKING:
    from draftwood.bench.prompts import Prompt
    from draftwood.core.generation import Pipeline
    from studies.dblast.mixtures import Cell, Setting
    from studies.dblast.offers import Replay

JSON = {
    "machine": "what it ran on",
    "models": "{target, dflash, dblast}, as given",
    "seed": "of texts, draws and intervals",
    "counts_bonus": "false: all counts are drafts without the bonus token",
    "cells": "[{setting, title, prompts, rounds, entropy, methods, gains, branches, first_tokens}]",
    "cells.*.methods": "[{method, rule, accepted: {value, low, high}, nodes}]",
    "cells.*.gains": "[{ours, theirs, ratio: {value, low, high}}], 1 is no gain",
    "cells.*.branches": "{usage, lottery_usage, effective, effective_in_a_round, distinct}",
    "cells.*.first_tokens": "{tokens, mass}: how many the greedy branches have, and how much of "
    "the target's distribution they and as many of others' likeliest have",
    "by_entropy": "[{low, high, mean, rounds, gains}], bits of the target's next token",
}
FILTERS = ("none", "20:0.8", "20:0.95")


def _filters(
    _: click.Context, __: click.Parameter, values: Sequence[str]
) -> tuple[tuple[int | None, float | None], ...]:
    """none, or K:P for top-k and top-p; either may be left out."""
    from draftwood.core.options import Sampling

    found: list[tuple[int | None, float | None]] = []
    for value in values:
        top_k, colon, top_p = value.partition(":")
        pair: tuple[int | None, float | None] = (None, None)
        try:
            if value != "none":
                pair = (int(top_k) if top_k else None, float(top_p) if top_p else None)
                Sampling(1.0, *pair)
        except ValueError:
            colon = ""
        if value != "none" and (not colon or pair == (None, None)):
            raise click.BadParameter(f"{value!r}: none, or TOP_K:TOP_P as in 20:0.8")
        found.append(pair)
    return tuple(found)


@click.command("dblast")
@click.option("--target", metavar="MODEL", default="builtin", show_default=True)
@click.option(
    "--dflash",
    metavar="CHECKPOINT",
    default="builtin",
    show_default=True,
    help="The independent drafter of that target; builtin was trained as the bundled mixture was.",
)
@click.option(
    "--dblast",
    metavar="CHECKPOINT",
    default="builtin",
    show_default=True,
    help="The drafter with branches.",
)
@click.option(
    "--prompts",
    multiple=True,
    default=("builtin:code", "builtin:open"),
    show_default=True,
    metavar="SOURCE",
    help="Prompt sets, as in bench. May be repeated.",
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
    help="Of the target; each with each filter.",
)
@click.option(
    "--filters",
    multiple=True,
    default=FILTERS,
    show_default=True,
    metavar="K:P",
    callback=_filters,
    help="Top-k and top-p of the target, or none. May be repeated.",
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
    help="Chains that each sampled method draws in a round.",
)
@click.option("--seed", metavar="N", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--out",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write dblast.md, dblast.json and dblast.svg there.",
)
@json_option
@click.pass_obj
def command(
    session: Session,
    target: str,
    dflash: str,
    dblast: str,
    prompts: tuple[str, ...],
    limit: int | None,
    temperatures: tuple[float, ...],
    filters: tuple[tuple[int | None, float | None], ...],
    tokens: int,
    draws: int,
    seed: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Compare a mixture of branches with independent drafting.

    The target writes a text after each prompt at each temperature and filter. At every round of
    it all methods grow their trees from the same context, and what each rule accepts of them is
    computed from the target's distribution at their nodes, not drawn: DFlash by argmax and sampled;
    DBlast as published, a branch drawn and decoded greedily; samples of its mixture; the tree of
    its greedy branches; and BASTION over both drafters with that tree's number of nodes.

    Counts are drafts per round without the bonus token. The lottery uses the checkpoint's own Z_T
    (see `draftwood tune-zt`), other methods the prior as it was trained.

    \b
      draftwood ablate dblast
      draftwood ablate dblast --target T --dflash D --dblast B --limit 8 --out report
    """
    from draftwood.bench.machine import machine
    from draftwood.bench.prompts import load_prompts
    from draftwood.core.assets import resolve
    from studies.dblast.mixtures import Setting, figure, markdown, report

    chosen = load_prompts(prompts, limit)
    settings = [Setting(heat, *pair) for heat in temperatures for pair in filters]
    alike = str(resolve(dflash, "independent"))
    plain, replay = _load(session, target, alike, dblast, draws)
    with counting(len(settings) * len(chosen)) as step:
        cells = [_cell(plain, replay, each, chosen, tokens, seed, step) for each in settings]
    result = {
        "machine": machine(),
        "models": {"target": target, "dflash": dflash, "dblast": dblast},
        "seed": seed,
        **report(cells, seed),
    }
    text = markdown(result)
    if out is not None:
        files = {"dblast.json": json.dumps(result, indent=1) + "\n", "dblast.md": text}
        if (drawn := figure(result)) is not None:
            files["dblast.svg"] = drawn
        _write(out, files)
    if as_json:
        print_json(result)
    else:
        click.echo(text)


def _load(
    session: Session, target: str, dflash: str, dblast: str, draws: int
) -> "tuple[Pipeline, Replay]":
    """A plain pipeline of the target, for requests; and the drafters at work on its texts."""
    from draftwood.core.build import load_pipeline
    from draftwood.core.config.compose import check_composition
    from draftwood.core.config.pipeline import load_config
    from draftwood.core.registry.plugin import Kind
    from studies.dblast.mixtures import offering
    from studies.dblast.offers import Replay

    drafters = []
    for use, checkpoint in (("dflash", dflash), ("dblast", dblast)):
        document = {
            "target": {"model": target},
            "drafter": {"use": use, "checkpoint": checkpoint},
            "tree": {"use": "chain"},
            "controller": {"use": "fixed"},
            "verifier": {"use": "match"},
            "runtime": {"dtype": "float32"},
        }
        config = load_config(document, registry=session.registry)
        check_composition(config, session.registry)
        part = config.component(Kind.DRAFTER)
        assert part is not None
        drafters.append(part.build())
    alone = {key: document[key] for key in ("target", "verifier", "runtime")}
    plain = load_pipeline(alone, registry=session.registry)
    return plain, Replay(plain.target, drafters, offering(draws))


def _cell(
    plain: "Pipeline",
    replay: "Replay",
    setting: "Setting",
    prompts: "Sequence[Prompt]",
    tokens: int,
    seed: int,
    step: Any,
) -> "Cell":
    from studies.dblast.mixtures import Cell

    rounds = {}
    for number, prompt in enumerate(prompts):
        request = plain.request(
            prompt.encode(plain.tokenizer),
            max_new_tokens=tokens,
            seed=seed + number,
            temperature=setting.temperature,
            top_k=setting.top_k,
            top_p=setting.top_p,
        )
        rounds[prompt.id] = replay.rounds(request)
        step(f"{setting}, {prompt.id}")
    return Cell(setting, {name: seen for name, seen in rounds.items() if seen})


def _write(out: Path, files: dict[str, str]) -> None:
    from draftwood.core.errors import DraftwoodError

    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (out / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise DraftwoodError(f"{out}: {error.strerror}") from error
