"""Draws what a calibration measured: forward times over tree sizes, both roofs, and the fit."""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from draftwood.bench.figures import (
    RIGHT,
    WIDTH,
    Axis,
    colour_of,
    legend_of,
    standalone,
    svg,
    text,
)
from draftwood.core.errors import DraftwoodError
from draftwood.plugins.controllers.roofline.calibration import Calibration
from draftwood.plugins.controllers.roofline.prices import value
from draftwood.plugins.controllers.roofline.probing import Probe

HEIGHT, LEFT = 330, 66


def drawing(calibration: Calibration) -> str:
    """A standalone SVG, both axes logarithmic: points as measured, hollow where held out; a line
    per context for the fit; the roofs of the smallest context dashed."""
    points = [*calibration.fitted, *calibration.held_out]
    contexts = sorted({probe.context for probe in points})
    legend, below = legend_of([(f"context {c}", n) for n, c in enumerate(contexts)])
    top = below + 8
    across = Axis(math.log2(max(probe.tokens for probe in points)), LEFT + 8, WIDTH - RIGHT)
    fastest, slowest = (f(probe.seconds for probe in points) for f in (min, max))
    up = Axis(math.log10(1500 * slowest), top + HEIGHT, top, math.log10(700 * fastest))
    parts = [legend, _grid(across, up, top)]
    curve = partial(_curve, across, up)

    sizes = range(1, max(probe.tokens for probe in points) + 1)
    roofs = (("compute roof", calibration.roof.compute), ("memory roof", calibration.roof.memory))
    parts += [
        curve([value(p, n, contexts[0]) for n in sizes], 'class="reference"', title)
        for title, p in roofs
    ]
    for number, context in enumerate(contexts):
        seconds = [float(calibration.prices.forward(n, context)) for n in sizes]
        kind = f'class="line" stroke="{colour_of(number)}"'
        parts.append(curve(seconds, kind, f"fit, context {context}"))
    for probe in points:
        number = contexts.index(probe.context)
        hollow = probe in calibration.held_out
        parts.append(_dot(probe, across, up, colour_of(number), hollow))
    return standalone(svg("".join(parts), top + HEIGHT + 50, "forward times and their fit"))


def chosen(roofline: Mapping[str, Any], colour: int) -> str:
    """An SVG of a report's roofline: roofs dashed, what the controller expects of each size as a
    line, and every size that rounds verified as a dot, larger where there were more of them."""
    rounds, expected = roofline["rounds"], roofline["expected"]
    top, most = 16, max(math.log2(max(roofline["tokens"])), 1.0)
    across = Axis(most, LEFT + 8, WIDTH - RIGHT - 8)
    seconds = [*expected, *(each["seconds"] for each in rounds)]
    up = Axis(math.log10(1400 * max(seconds)), top + HEIGHT, top, math.log10(500 * min(seconds)))
    curve, all_rounds = partial(_curve, across, up), sum(each["count"] for each in rounds)
    parts = [
        _grid(across, up, top),
        curve(roofline["compute"], 'class="reference"', "compute roof"),
        curve(roofline["memory"], 'class="reference"', "memory roof"),
        curve(expected, f'class="line" stroke="{colour_of(colour)}"', "expected"),
    ]
    for each in rounds:
        share = each["count"] / all_rounds
        x = across.at(math.log2(each["tokens"]))
        y = up.at(math.log10(1000 * each["seconds"]))
        said = (
            f"{each['tokens'] - 1} draft nodes: {each['count']} rounds, "
            f"{1000 * each['seconds']:.3g} ms"
        )
        parts.append(
            f'<circle class="dot" fill="{colour_of(colour)}" fill-opacity="0.75" cx="{x:.1f}" '
            f'cy="{y:.1f}" r="{3 + 14 * math.sqrt(share):.1f}"><title>{said}</title></circle>'
        )
    return svg("".join(parts), top + HEIGHT + 50, "roofline with the sizes that were chosen")


def _curve(across: Axis, up: Axis, seconds: Sequence[float], kind: str, title: str) -> str:
    """Over every size; what lies outside the figure is left out."""
    placed = [
        f"{across.at(math.log2(n)):.1f} {up.at(math.log10(1000 * s)):.1f}"
        for n, s in enumerate(seconds, 1)
        if s > 0 and up.least <= math.log10(1000 * s) <= up.most
    ]
    if not placed:
        return ""
    return f'<path {kind} d="M{"L".join(placed)}"><title>{title}</title></path>'


def picture(calibration: Calibration, path: Path) -> None:
    """The same as a PNG file, drawn by matplotlib. Raises DraftwoodError without it."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise DraftwoodError(
            "a PNG needs matplotlib (pip install 'draftwood[plots]'); --svg needs nothing"
        ) from error
    points = [*calibration.fitted, *calibration.held_out]
    contexts = sorted({probe.context for probe in points})
    sizes = range(1, max(probe.tokens for probe in points) + 1)
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot(xlabel="tokens", ylabel="ms")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for roof in (calibration.roof.compute, calibration.roof.memory):
        over = [n for n in sizes if value(roof, n, contexts[0]) > 0]
        axes.plot(over, [1000 * value(roof, n, contexts[0]) for n in over], "--", color="grey")
    for number, context in enumerate(contexts):
        fit = [1000 * float(calibration.prices.forward(n, context)) for n in sizes]
        axes.plot(sizes, fit, color=colour_of(number), label=f"context {context}")
        for probes, face in ((calibration.fitted, None), (calibration.held_out, "white")):
            here = [probe for probe in probes if probe.context == context]
            axes.plot(
                [probe.tokens for probe in here],
                [1000 * probe.seconds for probe in here],
                "o",
                color=colour_of(number),
                markerfacecolor=face or colour_of(number),
            )
    lowest = 700 * min(probe.seconds for probe in points)
    axes.set_ylim(lowest, 1500 * max(probe.seconds for probe in points))
    axes.legend()
    figure.savefig(path, dpi=160, format="png")


def _dot(probe: Probe, across: Axis, up: Axis, colour: str, hollow: bool) -> str:
    x, y = across.at(math.log2(probe.tokens)), up.at(math.log10(1000 * probe.seconds))
    shape = f'class="hollow" stroke="{colour}"' if hollow else f'class="dot" fill="{colour}"'
    said = (
        f"{probe.tokens} tokens, context {probe.context}: {1000 * probe.seconds:.3g} ms"
        f"{', held out' if hollow else ''}"
    )
    return f'<circle {shape} cx="{x:.1f}" cy="{y:.1f}" r="4"><title>{said}</title></circle>'


def _grid(across: Axis, up: Axis, top: float) -> str:
    parts = []
    for power in range(math.floor(across.most) + 1):
        x = across.at(power)
        parts.append(
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{top + HEIGHT}"/>'
            + text("tick", x, top + HEIGHT + 18, str(2**power))
        )
    for mark in _decades(up):
        y = up.at(math.log10(mark))
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            + text("label", LEFT - 8, y + 4, f"{mark:g}")
        )
    middle = top + HEIGHT / 2
    parts.append(text("axis", (LEFT + WIDTH - RIGHT) / 2, top + HEIGHT + 38, "tokens of a forward"))
    parts.append(
        f'<text class="axis" x="14" y="{middle:.0f}" transform="rotate(-90 14 {middle:.0f})">'
        "milliseconds</text>"
    )
    return "".join(parts)


def _decades(axis: Axis) -> Iterator[float]:
    """1, 2 and 5 times powers of ten inside a logarithmic axis."""
    for power in range(math.floor(axis.least), math.ceil(axis.most) + 1):
        for digit in (1, 2, 5):
            value = digit * 10.0**power
            if axis.least <= math.log10(value) <= axis.most:
                yield value
