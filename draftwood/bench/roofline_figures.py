"""Figures of the roofline model: forward times over tree sizes, both roofs, and the fit."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draftwood.bench.figures import RIGHT, WIDTH, Axis, Figure, colour_of, standalone
from draftwood.core.errors import DraftwoodError
from draftwood.plugins.controllers.roofline.calibration import Calibration
from draftwood.plugins.controllers.roofline.roof import evaluate

HEIGHT, LEFT = 330, 66


class _ForwardTimes:
    """A figure of milliseconds over the tokens of a forward, both axes logarithmic."""

    def __init__(self, name: str, tokens: int, least: float, most: float, legend: Sequence[str]):
        self.figure = Figure(name)
        names = [(title, number) for number, title in enumerate(legend)]
        self.top = self.figure.legend(names) + 8 if names else 16
        self.bottom = self.top + HEIGHT
        self.across = Axis(max(tokens, 2), LEFT + 8, WIDTH - RIGHT - 8, 1, "log2")
        self.up = Axis(1000 * most, self.bottom, self.top, 1000 * least, "log10")
        self.figure.horizontal_axis(self.across, self.top, self.bottom, "tokens of a forward")
        self.figure.vertical_axis(self.up, LEFT, "milliseconds")

    def curve(self, seconds: Sequence[float], kind: str, title: str, **more: Any) -> None:
        """Add a line over sizes from 1; what lies outside the figure is left out."""
        milliseconds = [(n, 1000 * s) for n, s in enumerate(seconds, 1)]
        inside = [(n, ms) for n, ms in milliseconds if self.up.least <= ms <= self.up.most]
        if inside:
            places = [(self.across.at(n), self.up.at(ms)) for n, ms in inside]
            self.figure.path(places, kind, title, **more)

    def dot(self, tokens: int, seconds: float, kind: str, title: str, **more: Any) -> None:
        cx, cy = self.across.at(tokens), self.up.at(1000 * seconds)
        title = f"{title}, {1000 * seconds:.3g} ms"
        self.figure.add("circle", kind, title=title, cx=cx, cy=cy, **more)

    def svg(self) -> str:
        return self.figure.svg(self.bottom + 50)


def calibration_svg(calibration: Calibration) -> str:
    """A calibration as a standalone SVG.

    Measured points are dots, hollow where they were held out. There is a line per context for the
    fit; the roofs of the smallest context are dashed.
    """
    points = [*calibration.fitted, *calibration.held_out]
    contexts, sizes = _contexts_and_sizes(calibration)
    seconds = [probe.seconds for probe in points]
    chart = _ForwardTimes(
        "forward times and their fit",
        sizes[-1],
        0.7 * min(seconds),
        1.5 * max(seconds),
        [f"context {context}" for context in contexts],
    )
    for title, roof in (
        ("compute roof", calibration.roof.compute),
        ("memory roof", calibration.roof.memory),
    ):
        chart.curve([evaluate(roof, n, contexts[0]) for n in sizes], "reference", title)
    for number, context in enumerate(contexts):
        fit = [float(calibration.model.forward(n, context)) for n in sizes]
        chart.curve(fit, "line", f"fit, context {context}", stroke=colour_of(number))
    for probe in points:
        title = f"{probe.tokens} tokens, context {probe.context}"
        colour = colour_of(contexts.index(probe.context))
        if probe in calibration.held_out:
            title = f"held out: {title}"
            chart.dot(probe.tokens, probe.seconds, "hollow", title, r=4, stroke=colour)
        else:
            chart.dot(probe.tokens, probe.seconds, "dot", title, r=4, fill=colour)
    return standalone(chart.svg())


def verified_sizes_svg(roofline: Mapping[str, Any], colour: int) -> str:
    """The roofline of a report: what the controller expected, and what rounds verified.

    The roofs are dashed and expected times a line. Each size that rounds verified is a dot, larger
    for more rounds.
    """
    rounds, expected = roofline["rounds"], roofline["expected"]
    seconds = [*expected, *(each["seconds"] for each in rounds)]
    chart = _ForwardTimes(
        "roofline with the sizes that were verified",
        max(roofline["tokens"]),
        0.5 * min(seconds),
        1.4 * max(seconds),
        [],
    )
    chart.curve(roofline["compute"], "reference", "compute roof")
    chart.curve(roofline["memory"], "reference", "memory roof")
    chart.curve(expected, "line", "expected", stroke=colour_of(colour))
    total = sum(each["count"] for each in rounds)
    for each in rounds:
        title = f"{each['tokens'] - 1} draft nodes: {each['count']} rounds"
        look = {"fill": colour_of(colour), "fill_opacity": "0.75"}
        radius = 3 + 14 * math.sqrt(each["count"] / total)
        chart.dot(each["tokens"], each["seconds"], "dot", title, r=radius, **look)
    return chart.svg()


def calibration_png(calibration: Calibration, path: Path) -> None:
    """The same as `calibration_svg` as a PNG file, drawn by matplotlib.

    Raises:
        DraftwoodError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise DraftwoodError(
            "a PNG needs matplotlib (pip install 'draftwood[plots]'); --svg needs nothing"
        ) from error
    contexts, sizes = _contexts_and_sizes(calibration)
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot(xlabel="tokens", ylabel="ms")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for roof in (calibration.roof.compute, calibration.roof.memory):
        over = [n for n in sizes if evaluate(roof, n, contexts[0]) > 0]
        axes.plot(over, [1000 * evaluate(roof, n, contexts[0]) for n in over], "--", color="grey")
    for number, context in enumerate(contexts):
        colour = colour_of(number)
        fit = [1000 * float(calibration.model.forward(n, context)) for n in sizes]
        axes.plot(sizes, fit, color=colour, label=f"context {context}")
        for probes, face in ((calibration.fitted, colour), (calibration.held_out, "white")):
            points = [(p.tokens, 1000 * p.seconds) for p in probes if p.context == context]
            if points:
                axes.plot(*zip(*points, strict=True), "o", color=colour, markerfacecolor=face)
    seconds = [probe.seconds for probe in (*calibration.fitted, *calibration.held_out)]
    axes.set_ylim(700 * min(seconds), 1500 * max(seconds))
    axes.legend()
    figure.savefig(path, dpi=160, format="png")


def _contexts_and_sizes(calibration: Calibration) -> tuple[list[int], range]:
    """The contexts that were measured, and every size up to the largest."""
    points = [*calibration.fitted, *calibration.held_out]
    contexts = sorted({probe.context for probe in points})
    return contexts, range(1, max(probe.tokens for probe in points) + 1)
