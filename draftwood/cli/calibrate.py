"""`draftwood calibrate`: measure a target on this machine and store the measurements."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from draftwood.cli.app import Session
from draftwood.cli.options import (
    PipelineSource,
    file_option,
    json_option,
    number_option,
    pipeline_argument,
    print_json,
    progress_bar,
    table,
)

if TYPE_CHECKING:
    from draftwood.core.interfaces import CostProbe, Target
    from draftwood.core.kernels.protocol import Kernels
    from draftwood.plugins.controllers.roofline.calibration import Calibration

JSON = {
    "identity": "what it applies to: {device, dtype, model, attention, versions, ...}",
    "stored": "the file that `roofline` and `measured` read; null if it could not be written",
    "flops": "traced, or closed form where the model cannot be traced",
    "peak_flops": "FLOP/s of a large matrix product",
    "peak_bytes": "bytes/s of a large copy",
    "compute": "coefficients of 1, s, s^2, c, s c of the compute roof, seconds; also `memory`",
    "quality": "{median, largest, roof_median}: absolute relative errors on held-out points",
    "points": "[{tokens, context, seconds, predicted, held_out}]",
}
COLUMNS = ("tokens", "context", "measured ms", "predicted ms", "error", "")


@click.command("calibrate")
@pipeline_argument
@number_option("--repeats", default=5, help="How often each point is timed; the fastest counts.")
@file_option("--svg", help="Draw the points and the fit.")
@file_option("--png", help="Draw them as PNG; needs matplotlib.")
@json_option
@click.pass_obj
def command(
    session: Session,
    source: PipelineSource,
    repeats: int,
    svg: Path | None,
    png: Path | None,
    as_json: bool,
) -> None:
    """Measure a target's forwards on this machine.

    Times forwards of the pipeline's target over tree sizes and contexts, counts their operations
    by tracing the model, fits two roofs, tries them on points that were held out, and stores the
    result where the roofline and measured controllers look first.

    Without it a first run measures coarsely by itself, in a few seconds.

    \b
      draftwood calibrate bastion
      draftwood calibrate mine.yaml --repeats 9 --svg roofs.svg
    """
    from attrs import evolve

    from draftwood.core.build import load_pipeline
    from draftwood.plugins.controllers.roofline import store

    config = source.read(session)
    # No drafter is needed, and a controller would measure coarsely first. The verifier stays: it
    # may choose the kernels.
    alone = evolve(config, drafter=None, tree=None, controller=None)
    loaded = load_pipeline(alone, registry=session.registry)
    costs, counted = _costs(loaded.target, loaded.engine.kernels)
    result = measure(costs, repeats)
    probes = [*result.fitted, *result.held_out]
    kept = store.save(costs.identity, result.model, probes)
    path = str(store.path_of(costs.identity)) if kept else None
    _draw(result, svg, png)
    if as_json:
        about = {"identity": dict(costs.identity), "stored": path, "flops": counted}
        print_json({**about, **result.as_dict()})
        return
    click.echo(_text(result, counted))
    click.echo(f"stored: {path or 'nowhere'}", err=True)


def _costs(target: "Target", kernels: "Kernels | None") -> "tuple[CostProbe, str]":
    """How to price forwards, and how operations are counted."""
    import time

    from draftwood.core.errors import UnsupportedTarget
    from draftwood.plugins.controllers.roofline.calibration import CountedCosts

    costs = target.costs(time.perf_counter, kernels)
    try:
        return CountedCosts(costs, target.traced_flops()), "traced"
    except UnsupportedTarget as error:
        click.echo(f"{error}; operations come from a closed form", err=True)
        return costs, "closed form"


def measure(costs: "CostProbe", repeats: int) -> "Calibration":
    """Calibrate behind a progress bar."""
    from draftwood.plugins.controllers.roofline.calibration import calibrate

    with progress_bar() as bar:
        task = bar.add_task("timing forwards")
        return calibrate(
            costs, repeats, lambda done, of: bar.update(task, completed=done, total=of)
        )


def _draw(result: "Calibration", svg: Path | None, png: Path | None) -> None:
    if svg is None and png is None:
        return
    from draftwood.bench.roofline_figures import calibration_png, calibration_svg
    from draftwood.core.errors import DraftwoodError

    try:
        if svg is not None:
            svg.write_text(calibration_svg(result), encoding="utf-8")
        if png is not None:
            calibration_png(result, png)
    except OSError as error:
        raise DraftwoodError(f"{svg or png}: {error.strerror}") from error


def _text(result: "Calibration", counted: str) -> str:
    rows: list[tuple[Any, ...]] = [
        (
            str(probe.tokens),
            str(probe.context),
            f"{1000 * probe.seconds:.2f}",
            f"{1000 * result.predicted(probe):.2f}",
            f"{result.error(probe):+.1%}",
            "held out" if probe in result.held_out else "",
        )
        for probe in sorted(
            (*result.fitted, *result.held_out), key=lambda probe: (probe.context, probe.tokens)
        )
    ]
    quality = result.quality()
    lines = [
        table(rows, COLUMNS),
        "",
        f"peak {result.peaks[0] / 1e9:.1f} GFLOP/s, bandwidth {result.peaks[1] / 1e9:.1f} GB/s, "
        f"operations {counted}",
    ]
    if quality["median"] is not None:
        lines.append(
            f"on held-out points: median error {quality['median']:.1%}, largest "
            f"{quality['largest']:.1%}; the two roofs alone: median {quality['roof_median']:.1%}"
        )
    return "\n".join(lines)
