"""`draftwood lossless`: whether a pipeline keeps its target's output, shown on the user's model."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs
import click

from draftwood.cli.app import Session
from draftwood.cli.options import PipelineSource, json_option, pipeline_argument, print_json

if TYPE_CHECKING:
    from draftwood.core.config.pipeline import PipelineConfig
    from draftwood.core.generation import Pipeline
    from draftwood.testing.lossless import Report

JSON = {
    "verdict": "lossless, biased or inconclusive",
    "doubts": "why it is inconclusive, a sentence each",
    "exact": "{cases, horizon, max_error, biased, reason}: the distribution of this tree, "
    "controller and "
    "verifier with toy drafters of the same form of distribution, by enumeration",
    "exact.biased": "{case, number, prefix, pipeline, target, path}: the first biased case, the "
    "next-token distributions after the first wrong prefix, and the round, tree and accepted nodes "
    "that decided there; null if there is none",
    "decisions": "{cases, near_ties, difference}: of a verifier on a device beside its reference, "
    "which is what was enumerated; near_ties: those that rounding may decide; null without a "
    "reference",
    "parity": "{dtype: {prompts, tokens, differences, control}}: greedy text beside plain decoding",
    "parity.*.differences": "[{prompt, position, margin, bound, within, pipeline, plain, code}]: "
    "where texts part, and the target's margin there",
    "parity.*.control": "{chunk_sizes, differences}: plain decoding beside itself, other chunk "
    "sizes",
    "seeded": "as a value of parity: sampled text beside plain decoding with the same seeds, in "
    "float32; null if the verifier does not declare seed_parity",
    "distribution": "{temperature, tokens, family_error, smallest_bias, tests}: sampled text "
    "against the "
    "target's own distributions; smallest_bias: the total variation that so many tokens show",
    "distribution.tests": "[{name, statistic, freedom, count, p_value}]",
    "rounds": "of parity and distribution together",
    "accepted": "draft tokens accepted in them",
    "rejected": "rounds that ended at a rejected draft token",
    "kernels": "{name: launches} in them; empty where no kernels run",
}
PARITY_TOKENS, DISTRIBUTION_TOKENS = 64, 48


@click.command("lossless")
@pipeline_argument
@click.option(
    "--bias",
    metavar="B",
    type=click.FloatRange(0.02, 0.5),
    default=0.1,
    show_default=True,
    help="Sample until a bias this large would show; twice it takes a quarter of the tokens.",
)
@json_option
@click.pass_obj
def command(session: Session, source: PipelineSource, bias: float, as_json: bool) -> int:
    """Show that a pipeline keeps its target's output.

    Enumerates the exact distribution of the pipeline's own tree, controller and verifier on a toy
    model, on deep, wide, late and tied toys too; compares greedy text with plain decoding in
    float32 and in the pipeline's dtype, with the target's margin wherever they part, and sampled
    text with the same seeds where the verifier promises that; and tests sampled text against the
    target's own distributions. Exits with 1 if it is biased, and shows where and how to repeat it,
    or if the evidence is not enough, and says what is missing.

    \b
      draftwood lossless bastion
      draftwood lossless pipeline.yaml --json
      TRITON_INTERPRET=1 draftwood lossless dflash --set verifier.use=triton --bias 0.3
    """
    config = source.read(session)
    report = examine(config, session, bias=bias, quiet=as_json)
    if as_json:
        print_json(report.as_dict())
    else:
        click.echo(render(report, source.name, source.settings))
    return 0 if report.verdict == "lossless" else 1


def examine(config: "PipelineConfig", session: Session, *, bias: float, quiet: bool) -> "Report":
    """Gather the evidence, saying what is being done unless quiet. bias: as in `check_law`."""
    from draftwood.core.draws import Draws
    from draftwood.testing.decisions import check_decisions
    from draftwood.testing.lossless import (
        Report,
        check_distribution,
        check_exact,
        check_parity,
        parts,
        toy_arguments,
    )

    def say(text: str) -> None:
        if not quiet:
            click.echo(text, err=True)

    form, tree_draws, any_form = toy_arguments(config)
    say("enumerating toy pipelines")
    exact = check_exact(form, lambda: parts(config), tree_draws, any_form)
    loaded = _load(config, "float32", session)
    verifier = loaded.engine.verifier
    if verifier.reference is not None:
        say(f"judging toy trees, beside {verifier.reference.name}")
    draws = frozenset(Draws) if config.verifier is None else config.verifier.traits.draws
    decisions = check_decisions(verifier, draws, loaded.target.device)
    prompts = _prompts(loaded)
    say("decoding greedily in float32, beside plain decoding")
    parity = [check_parity(loaded, prompts, PARITY_TOKENS, "float32")]
    seeded = None
    if config.verifier is None or config.verifier.traits.seed_parity:
        say("sampling, beside plain decoding with the same seeds")
        temperature = loaded.generation.temperature or 1.0
        seeded = check_parity(loaded, prompts, PARITY_TOKENS, "float32", temperature)
    say("sampling, for the distribution of the output")
    sampled = check_distribution(loaded, prompts, DISTRIBUTION_TOKENS, bias)
    dtype = _configured_dtype(config, loaded)
    if dtype != "float32":
        say(f"decoding greedily in {dtype}, beside plain decoding")
        parity.append(check_parity(_load(config, dtype, session), prompts, PARITY_TOKENS, dtype))
    return Report(exact, tuple(parity), sampled, form is not None, decisions, seeded)


def render(report: "Report", pipeline: str, settings: Sequence[str] = ()) -> str:
    """The evidence and the verdict, with Python that repeats what is wrong, for people."""
    source = f"{pipeline!r}, {list(settings)}"
    exact, sampled = report.exact, report.distribution
    lines = [
        f"exact   {exact.cases} toy pipelines, {exact.horizon} tokens or more each: "
        f"largest error {exact.max_error:.1e}"
    ]
    if exact.worst is not None:
        case, comparison = exact.worst
        code = (
            "from draftwood.testing.lossless import repeat_case\n"
            f"print(repeat_case({source}, case={exact.number}))"
        )
        lines += [f"  biased: {case}", *(f"  {line}" for line in str(comparison).splitlines())]
        lines += ["  to repeat it, in Python:", *_indented(code)]
    if report.decisions is not None:
        decided = report.decisions
        lines.append(
            f"judge   {decided.cases} decisions beside the reference's: "
            f"{decided.difference or 'all alike'}; {decided.near_ties} where rounding may decide"
        )
    for parity in (*report.parity, *([report.seeded] if report.seeded else [])):
        lines.append(
            f"parity  {parity.dtype}, temperature {parity.temperature:g}: "
            f"{parity.prompts} prompts, {parity.tokens} tokens: "
            f"{len(parity.differences)} texts part from plain decoding's; "
            f"{len(parity.control)} do when plain decoding only changes its chunk size"
        )
        for each in parity.differences:
            allowed = "within" if each.within else "OUTSIDE"
            lines.append(
                f"  prompt {each.prompt}, token {each.position}: {each.tokens[0]} where plain "
                f"decoding says {each.tokens[1]}; margin {each.margin:.2g}, {allowed} the bound "
                f"of {each.bound:.2g}"
            )
            if not each.within:
                load = (
                    "import draftwood\n"
                    f"pipeline = draftwood.load_pipeline({source[:-1]}"
                    f"{', ' if settings else ''}'runtime.dtype={parity.dtype}'])\n"
                )
                lines += ["  to repeat it, in Python:", *_indented(load + each.code)]
    lines.append(
        f"distribution {sampled.tokens} tokens at temperature {sampled.temperature}, enough to "
        f"find a bias of {sampled.smallest_bias:g}:"
    )
    lines += [f"  {test}" for test in sampled.tests]
    ran = report.speculation
    lines.append(
        f"ran     {ran.rounds} rounds, {ran.accepted} drafts accepted, {ran.rejected} rounds ended "
        "at a rejected one"
    )
    if ran.kernels:
        launched = (f"{name} {count}" for name, count in sorted(ran.kernels.items()))
        lines.append(f"kernels {', '.join(launched)} launches")
    lines += [f"doubt   {doubt}" for doubt in report.doubts]
    if report.verdict == "inconclusive":
        lines.append(
            "so      nothing speaks against it, and not enough for it: make it speculate (with "
            "--set controller.use=fixed, for one), or enumerable, and run this again"
        )
    return "\n".join([*lines, f"verdict {report.verdict}"])


def _indented(code: str) -> list[str]:
    return [f"    {line}" for line in code.splitlines()]


def _load(config: "PipelineConfig", dtype: str, session: Session) -> "Pipeline":
    from draftwood.core import build

    runtime = attrs.evolve(config.runtime, dtype=dtype)  # type: ignore[arg-type]
    return build.load_pipeline(attrs.evolve(config, runtime=runtime), registry=session.registry)


def _configured_dtype(config: "PipelineConfig", loaded: "Pipeline") -> str:
    """What the pipeline decodes in: `auto` is the checkpoint's own, on a CPU float32."""
    if config.runtime.dtype != "auto":
        return config.runtime.dtype
    if loaded.target.device.type == "cpu":
        return "float32"
    stored = getattr(getattr(loaded.target, "config", None), "dtype", None)
    return str(stored or "float32").removeprefix("torch.")


def _prompts(loaded: "Pipeline") -> Sequence[Sequence[int]]:
    """The bundled prompts, or made-up ids for a target that has no tokenizer."""
    from draftwood.cli.prompts import PROMPTS

    if loaded.tokenizer is not None:
        return [loaded.request(prompt).prompt for prompt in PROMPTS]
    from draftwood.testing.toys import seeded

    size = min(loaded.target.vocab_size, getattr(loaded.target, "vocab_limit", None) or 1 << 60)
    return [seeded("prompt", i).choices(range(size), k=12) for i in range(len(PROMPTS))]
