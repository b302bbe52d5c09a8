"""`draftwood lossless`: whether a pipeline keeps its target's output, shown on the user's model."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

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
    "exact.biased": "{case, prefix, pipeline, target}: the first biased case and the next-token "
    "distributions after the first wrong prefix; null if there is none",
    "decisions": "{cases, near_ties, difference}: of a verifier on a device beside its reference, "
    "which is what was enumerated; near_ties: those that rounding may decide; null without a "
    "reference",
    "parity": "{dtype: {prompts, tokens, differences, control}}: greedy text beside plain decoding",
    "parity.*.differences": "[{prompt, position, margin, bound, within, pipeline, plain}]: where "
    "texts part, and the target's margin there",
    "parity.*.control": "{chunk_sizes, differences}: plain decoding beside itself, other chunk "
    "sizes",
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
    model; compares greedy text with plain decoding in float32 and in the pipeline's dtype, with the
    target's margin wherever they part; and tests sampled text against the target's own
    distributions. Exits with 1 if it is biased, and shows where, or if the evidence is not enough,
    and says what is missing.

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
        click.echo(render(report))
    return 0 if report.verdict == "lossless" else 1


def examine(config: "PipelineConfig", session: Session, *, bias: float, quiet: bool) -> "Report":
    """Gather the evidence, saying what is being done unless quiet. bias: as in `check_law`."""
    from draftwood.core.draws import Draws
    from draftwood.core.registry.plugin import Kind
    from draftwood.testing.decisions import check_decisions
    from draftwood.testing.lossless import Report, check_distribution, check_exact, check_parity

    def say(text: str) -> None:
        if not quiet:
            click.echo(text, err=True)

    def build() -> dict[str, Any]:
        kinds = (Kind.TREE, Kind.CONTROLLER, Kind.VERIFIER)
        return {kind.value: part.build() for kind in kinds if (part := config.component(kind))}

    drafter = config.drafter
    form = None if drafter is None else drafter.traits.form
    say("enumerating toy pipelines")
    exact = check_exact(form, build)
    loaded = _load(config, "float32", session)
    verifier = loaded.engine.verifier
    if verifier.reference is not None:
        say(f"judging toy trees, beside {verifier.reference.name}")
    draws = frozenset(Draws) if config.verifier is None else config.verifier.traits.draws
    decisions = check_decisions(verifier, draws, loaded.target.device)
    prompts = _prompts(loaded)
    say("decoding greedily in float32, beside plain decoding")
    parity = [check_parity(loaded, prompts, PARITY_TOKENS, "float32")]
    say("sampling, for the distribution of the output")
    sampled = check_distribution(loaded, prompts, DISTRIBUTION_TOKENS, bias)
    dtype = _configured_dtype(config, loaded)
    if dtype != "float32":
        say(f"decoding greedily in {dtype}, beside plain decoding")
        parity.append(check_parity(_load(config, dtype, session), prompts, PARITY_TOKENS, dtype))
    return Report(exact, tuple(parity), sampled, drafter is not None, decisions)


def render(report: "Report") -> str:
    """The evidence and the verdict, for people."""
    exact, sampled = report.exact, report.distribution
    lines = [
        f"exact   {exact.cases} toy pipelines, {exact.horizon} tokens each: "
        f"largest error {exact.max_error:.1e}"
    ]
    if exact.worst is not None:
        case, comparison = exact.worst
        lines += [f"  biased: {case}", *(f"  {line}" for line in str(comparison).splitlines())]
    if report.decisions is not None:
        decided = report.decisions
        lines.append(
            f"judge   {decided.cases} decisions beside the reference's: "
            f"{decided.difference or 'all alike'}; {decided.near_ties} where rounding may decide"
        )
    for parity in report.parity:
        lines.append(
            f"parity  {parity.dtype}: {parity.prompts} prompts, {parity.tokens} tokens: "
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
