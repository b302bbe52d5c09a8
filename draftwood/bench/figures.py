"""Figures as self-contained SVG: bars with intervals, lines, steps and shares.

Text and colours come from a style sheet by class, so that a figure has no style of its own that
could reach another's. Every mark carries a <title>, which browsers show on hovering.
"""

import math
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, Literal

from attrs import frozen

WIDTH, ROW, TOP, BOTTOM, RIGHT = 760, 30, 12, 44, 24
LETTER = 7.1
"""Approximate width of a letter of a label; no font is measured."""

PALETTE = (
    "#2f6fde",
    "#d9730d",
    "#1f9d76",
    "#9b4dca",
    "#c2334d",
    "#5b7083",
    "#a88600",
    "#12889f",
)
"""Colours of series, which differ in hue and in lightness. The ninth series has the first again."""


@frozen
class Bar:
    """One bar of `bars`.

    Attributes:
        name: Its label.
        value: Its length.
        low: Lower end of its interval; None without one.
        high: Upper end of its interval.
        muted: Whether it is drawn in grey.
    """

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    muted: bool = False


@frozen
class Series:
    """A line of `lines` or `steps`.

    Attributes:
        name: In the legend.
        points: (x, y), in order.
        colour: Number of its colour.
    """

    name: str
    points: Sequence[tuple[float, float]]
    colour: int


@frozen
class Axis:
    """Maps values from `least` to `most` to pixels from `start` to `end`.

    Attributes:
        most: Largest value.
        start: Pixel of the smallest value.
        end: Pixel of the largest value.
        least: Smallest value; above 0 on a logarithmic scale.
        scale: `whole` has ticks at whole numbers only.
    """

    most: float
    start: float
    end: float
    least: float = 0.0
    scale: Literal["linear", "whole", "log2", "log10"] = "linear"

    def at(self, value: float) -> float:
        """The pixel of a value."""
        least, most = self.least, self.most
        if self.scale.startswith("log"):
            least, most, value = math.log(least), math.log(most), math.log(value)
        return self.start + (self.end - self.start) * (value - least) / (most - least)

    def ticks(self) -> list[float]:
        """Values that get a label."""
        least, most = self.least, self.most
        if self.scale == "whole":
            every = max(1, round((most - least) / 12))
            return list(range(math.ceil(least), math.floor(most) + 1, every))
        if self.scale == "log2":
            powers = range(math.ceil(math.log2(least)), math.floor(math.log2(most)) + 1)
            return [2.0**power for power in powers]
        if self.scale == "log10":
            powers = range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1)
            marks = (digit * 10.0**power for power in powers for digit in (1, 2, 5))
            return [mark for mark in marks if least <= mark <= most]
        step = _round_step((most - least) / 6)
        first, last = math.ceil(least / step - 1e-9), math.floor(most / step + 1e-9)
        return [n * step for n in range(first, last + 1)]


class Figure:
    """An SVG of WIDTH pixels, element by element; name: what it shows, for screen readers."""

    def __init__(self, name: str) -> None:
        attributes = {"class": "figure", "viewBox": "", "role": "img", "aria-label": name}
        self._root = ET.Element("svg", attributes)

    def add(
        self, tag: str, kind: str = "", *, title: str = "", content: str = "", **attributes: Any
    ) -> None:
        """Add an element; kind: its class. A `_` in the name of an attribute stands for `-`."""
        element = ET.SubElement(self._root, tag, {"class": kind} if kind else {})
        element.text = content or None
        for name, value in attributes.items():
            shown = f"{value:.1f}" if isinstance(value, float) else str(value)
            element.set(name.replace("_", "-"), shown)
        if title:
            ET.SubElement(element, "title").text = title

    def text(self, kind: str, x: float, y: float, content: str) -> None:
        """Add a text; its class says how it is aligned."""
        self.add("text", kind, content=content, x=float(x), y=float(y))

    def legend(self, names: Sequence[tuple[str, int]]) -> float:
        """Add lines of named squares, with the numbers of their colours; returns where they end."""
        x, y = 20.0, 8.0
        for name, colour in names:
            width = 30 + LETTER * len(name)
            if x + width > WIDTH:
                x, y = 20.0, y + 20
            self.add("rect", x=x, y=y, width=11, height=11, rx=2, fill=colour_of(colour))
            self.text("key", x + 16, y + 10, name)
            x += width
        return y + 20

    def horizontal_axis(
        self, axis: Axis, top: float, bottom: float, unit: str, *, grid: bool = True
    ) -> None:
        """Add ticks below `bottom`, their unit, and grid lines up to `top`."""
        for tick in axis.ticks():
            x = axis.at(tick)
            if grid:
                self.add("line", "grid", x1=x, x2=x, y1=float(top), y2=float(bottom))
            self.text("tick", x, bottom + 18, f"{tick:g}")
        self.text("axis", (axis.start + axis.end) / 2, bottom + 38, unit)

    def vertical_axis(self, axis: Axis, left: float, unit: str) -> None:
        """Add ticks left of `left`, their unit, and grid lines to the right edge."""
        for tick in axis.ticks():
            y = axis.at(tick)
            self.add("line", "grid", x1=float(left), x2=float(WIDTH - RIGHT), y1=y, y2=y)
            self.text("label", left - 8, y + 4, f"{tick:g}")
        middle = round((axis.start + axis.end) / 2)
        turned = f"rotate(-90 14 {middle})"
        self.add("text", "axis", content=unit, x=14, y=middle, transform=turned)

    def path(
        self, places: Sequence[tuple[float, float]], kind: str, title: str, **more: Any
    ) -> None:
        """Add a line through pixels."""
        joined = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        self.add("path", kind, title=title, d=f"M{joined}", **more)

    def bar(self, start: float, y: float, end: float, kind: str, title: str, **more: Any) -> None:
        """Add a horizontal bar in the row that begins at y."""
        size: dict[str, Any] = {"x": start, "y": y + 6, "width": end - start, "height": ROW - 12}
        self.add("rect", kind, title=title, **more, **size)

    def svg(self, height: float) -> str:
        """The figure, cut at this height."""
        self._root.set("viewBox", f"0 0 {WIDTH} {height:.0f}")
        return ET.tostring(self._root, encoding="unicode")


def bars(rows: Sequence[Bar], unit: str, reference: float) -> str:
    """Horizontal bars from 0 with their intervals, and a line at `reference`."""
    figure = Figure("speedup")
    left = 20 + LETTER * max(len(row.name) for row in rows)
    most = max(max(row.value, row.high or 0.0) for row in rows)
    axis = Axis(max(most, reference) * 1.14, left, WIDTH - RIGHT)
    bottom = TOP + ROW * len(rows)
    figure.horizontal_axis(axis, 4, bottom, unit)
    x = axis.at(reference)
    figure.add("line", "reference", x1=x, x2=x, y1=4, y2=bottom)
    for index, row in enumerate(rows):
        y = TOP + ROW * index
        middle, end = y + ROW / 2, axis.at(row.value)
        title = f"{row.name}: {row.value:.2f}"
        interval = row.low is not None and row.high is not None
        if interval:
            title += f" ({row.low:.2f}-{row.high:.2f})"
        figure.text("label", left - 8, middle + 4, row.name)
        kind = "bar muted" if row.muted else "bar"
        figure.bar(left, y, end, kind, title, rx=2)
        if row.low is not None and row.high is not None:
            low, high = axis.at(row.low), axis.at(row.high)
            end = max(end, high)
            whisker = f"M{low:.1f} {middle - 5}v10M{low:.1f} {middle}H{high:.1f}m0 -5v10"
            figure.add("path", "whisker", title=title, d=whisker)
        figure.text("value", end + 7, middle + 4, f"{row.value:.2f}")
    return figure.svg(bottom + BOTTOM)


def shares(rows: Mapping[str, Mapping[str, float]], unit: str) -> str:
    """Stacked horizontal bars: {name: {part: amount}}, the same parts in each."""
    figure = Figure("time by stage")
    left = 20 + LETTER * max(map(len, rows))
    axis = Axis(max(sum(row.values()) for row in rows.values()) * 1.1, left, WIDTH - RIGHT)
    parts = next(iter(rows.values()))
    top = figure.legend([(part, colour) for colour, part in enumerate(parts)]) + 6
    bottom = top + ROW * len(rows)
    figure.horizontal_axis(axis, top, bottom, unit)
    for index, (name, row) in enumerate(rows.items()):
        y = top + ROW * index
        figure.text("label", left - 8, y + ROW / 2 + 4, name)
        total, reached = sum(row.values()), 0.0
        for colour, (part, amount) in enumerate(row.items()):
            start, reached = axis.at(reached), reached + amount
            end = axis.at(reached)
            if end - start < 0.2:
                continue
            title = f"{name}, {part}: {amount:.3g} {unit}, {amount / total:.0%}"
            figure.bar(start, y, end, "part", title, fill=colour_of(colour))
        figure.text("value", axis.at(total) + 7, y + ROW / 2 + 4, f"{total:.3g}")
    return figure.svg(bottom + BOTTOM)


def lines(series: Sequence[Series], across: str, up: str, most: float | None = None) -> str:
    """Points joined by lines, with a legend; across, up: names of the axes."""
    return _chart(series, across, up, most, stepped=False)


def steps(series: Sequence[Series], across: str, up: str) -> str:
    """Values that hold until the next, with a legend; across, up: names of the axes."""
    return _chart(series, across, up, None, stepped=True)


def _chart(
    series: Sequence[Series], across: str, up: str, most: float | None, *, stepped: bool
) -> str:
    figure = Figure(up)
    top, height, left = figure.legend([(each.name, each.colour) for each in series]) + 8, 220, 58
    points = [point for each in series for point in each.points]
    first, last = min(x for x, _ in points), max(x for x, _ in points) + stepped
    horizontal = Axis(max(last, first + 1), left + 8, WIDTH - RIGHT, first, "whole")
    vertical = Axis(most or 1.08 * max(1e-9, *(y for _, y in points)), top + height, top)
    figure.vertical_axis(vertical, left, up)
    figure.horizontal_axis(horizontal, top, top + height, across, grid=False)
    for each in series:
        colour = colour_of(each.colour)
        data = _held(each.points) if stepped else each.points
        places = [(horizontal.at(x), vertical.at(y)) for x, y in data]
        figure.path(places, "line", each.name, stroke=colour)
        if not stepped:
            for (px, py), (x, y) in zip(places, data, strict=True):
                title = f"{each.name}: {x:g}, {y:.3g}"
                figure.add("circle", "dot", title=title, cx=px, cy=py, r=3.5, fill=colour)
    return figure.svg(top + height + 50)


def _held(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The corners of steps: each value holds until the next, the last one for one more unit."""
    corners = []
    for n, (x, y) in enumerate(points):
        end = points[n + 1][0] if n + 1 < len(points) else x + 1
        corners += [(x, y), (end, y)]
    return corners


def standalone(figure: str) -> str:
    """A figure as a file of its own, with the style that a page would give it."""
    root = ET.fromstring(figure)
    root.set("xmlns", "http://www.w3.org/2000/svg")
    style = ET.Element("style")
    style.text = (files("draftwood.bench") / "templates/figure.css").read_text(encoding="utf-8")
    root.insert(0, style)
    root.insert(1, ET.Element("rect", width="100%", height="100%", fill="#fff"))
    return ET.tostring(root, encoding="unicode") + "\n"


def colour_of(index: int) -> str:
    """The colour of a series by its number."""
    return PALETTE[index % len(PALETTE)]


def _round_step(step: float) -> float:
    """The next of 1, 2, 2.5, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= step * (1 - 1e-9))
