"""`python -m studies.dblast ablate`: a mixture of branches compared with independent drafting."""

from collections.abc import Callable, Sequence
from pathlib import Path

import click

from draftwood.bench.machine import machine
from draftwood.bench.prompts import Prompt, load_prompts
from draftwood.cli.app import Session
from draftwood.cli.progress import counting
from draftwood.core.assets import resolve
from draftwood.core.build import load_pipeline
from draftwood.core.config.compose import check_composition
from draftwood.core.config.pipeline import load_config
from draftwood.core.errors import DraftwoodError
from draftwood.core.generation import Pipeline
from draftwood.core.options import Sampling
from draftwood.core.registry.plugin import Kind
from studies.command_line import out_option, show, text_options
from studies.dblast.figures import draw_gains
from studies.dblast.methods import method_trees
from studies.dblast.replay import Replay
from studies.dblast.report import Setting, SettingRounds, report
from studies.dblast.tables import markdown

JSON = {
    "machine": "what it ran on",
    "models": "{target, dflash, dblast}, as given",
    "seed": "of texts, draws and intervals",
    "counts_bonus": "false: all counts are drafts without the bonus token",
    "cells": "[{setting, title, prompts, rounds, entropy, methods, gains, branches, first_tokens}]",
    "cells.*.methods": "[{method, rule, accepted: {value, low, high}, nodes}]",
    "cells.*.gains": "[{ours, theirs, ratio: {value, low, high}}], 1 is no gain",
    "cells.*.branches": "{usage, lottery_usage, effective, effective_in_a_round, distinct}",
    "cells.*.first_tokens": "{tokens, mass}: how many the greedy branches have, and the "
    "probability of as many tokens of each choice under the target",
    "by_entropy": "[{low, high, mean, rounds, gains}], bits of the target's next token",
}
FILTERS = ("none", "20:0.8", "20:0.95")


def _filters(
    _: click.Context, __: click.Parameter, values: Sequence[str]
) -> tuple[tuple[int | None, float | None], ...]:
    """none, or K:P for top-k and top-p; either may be left out."""
    return tuple(_filter(value) for value in values)


def _filter(value: str) -> tuple[int | None, float | None]:
    if value == "none":
        return None, None
    top_k, colon, top_p = value.partition(":")
    try:
        pair = int(top_k) if top_k else None, float(top_p) if top_p else None
        Sampling(1.0, *pair)
    except ValueError:
        colon = ""
    if not colon or value == ":":
        raise click.BadParameter(f"{value!r}: none, or TOP_K:TOP_P as in 20:0.8")
    return pair


@click.command("ablate")
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
@text_options(temperatures="0.7,1,1.5", tokens=64)
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
    "--draws",
    metavar="N",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="Chains that each sampled method draws in a round.",
)
@out_option("dblast.md, dblast.json and dblast.svg")
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
    (see tune-zt), other methods the prior as trained.

    \b
      python -m studies.dblast ablate
      python -m studies.dblast ablate --target T --dflash D --dblast B --limit 8 --out report
    """
    chosen = load_prompts(prompts, limit)
    settings = [Setting(temperature, *pair) for temperature in temperatures for pair in filters]
    independent = str(resolve(dflash, "independent"))
    plain, replay = _load(session, target, independent, dblast, draws)
    with counting(len(settings) * len(chosen)) as step:
        cells = [_rounds(plain, replay, each, chosen, tokens, seed, step) for each in settings]
    result = {
        "machine": machine(),
        "models": {"target": target, "dflash": dflash, "dblast": dblast},
        "seed": seed,
        **report(cells, seed),
    }
    show("dblast", result, markdown(result), out, as_json)
    if out is not None:
        try:
            draw_gains(result, out / "dblast.svg")
        except DraftwoodError as error:  # the numbers are written
            click.echo(f"no figure: {error}", err=True)


def _load(
    session: Session, target: str, dflash: str, dblast: str, draws: int
) -> tuple[Pipeline, Replay]:
    """A plain pipeline of the target, for requests; and the drafters, replayed on its texts."""
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
    without_draft = {key: document[key] for key in ("target", "verifier", "runtime")}
    plain = load_pipeline(without_draft, registry=session.registry)
    return plain, Replay(plain.target, drafters, method_trees(draws))


def _rounds(
    plain: Pipeline,
    replay: Replay,
    setting: Setting,
    prompts: Sequence[Prompt],
    tokens: int,
    seed: int,
    step: Callable[[str], None],
) -> SettingRounds:
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
    return SettingRounds(setting, {name: text for name, text in rounds.items() if text})
