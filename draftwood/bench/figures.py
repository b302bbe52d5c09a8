"""Figures as SVG, drawn here: bars with intervals, lines, steps and shares.

Text and colours come from the page's style sheet by class, so that a figure has no style of its
own that could reach another's. Every mark carries a <title>, which browsers show on hovering.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape

from attrs import frozen

WIDTH, ROW, TOP, BOTTOM, RIGHT = 760, 30, 12, 44, 24
LETTER = 7.1
"""Width of a letter of a label, about: no font is measured here."""

STYLE = """
.figure { width: 100%; height: auto; display: block; }
.figure text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
  fill: #3d444d; }
.figure .label { text-anchor: end; }
.figure .tick, .figure .axis { text-anchor: middle; fill: #59636e; }
.figure .value { font-weight: 600; }
.figure .grid { stroke: #e8ebef; }
.figure .reference { stroke: #59636e; stroke-dasharray: 4 3; fill: none; }
.figure .bar { fill: #2f6fde; }
.figure .muted { fill: #aab4c0; }
.figure .whisker { stroke: #1f2328; stroke-width: 1.3; fill: none; }
.figure .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.figure .dot, .figure .part { stroke: #fff; stroke-width: 1; }
.figure .hollow { fill: #fff; stroke-width: 1.6; }
"""

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
"""Colours of series, told apart by hue and by lightness; a ninth begins again."""


@frozen
class Bar:
    """One bar of `bars`. low, high: its interval, if it has one. muted: not a pipeline of ours."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    muted: bool = False


@frozen
class Series:
    """A line of `lines` or `steps`: a name, its points in order, and which colour it has."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: int


@frozen
class Axis:
    """Values from 0 to `most` on pixels from `start` to `end`."""

    most: float
    start: float
    end: float
    least: float = 0.0

    def at(self, value: float) -> float:
        share = (value - self.least) / (self.most - self.least)
        return self.start + (self.end - self.start) * share

    def ticks(self, count: int = 6) -> list[float]:
        step = _nice((self.most - self.least) / count)
        first = math.ceil(self.least / step - 1e-9)
        last = math.floor(self.most / step + 1e-9)
        return [n * step for n in range(first, last + 1)]


def bars(rows: Sequence[Bar], unit: str, reference: float) -> str:
    """Horizontal bars from 0, their intervals over them, and a line at `reference`."""
    left = 20 + LETTER * max(len(row.name) for row in rows)
    most = max(max(row.value, row.high or 0.0) for row in rows)
    axis = Axis(max(most, reference) * 1.14, left, WIDTH - RIGHT)
    bottom = TOP + ROW * len(rows)
    parts = [_vertical_grid(axis, bottom, unit)]
    x = axis.at(reference)
    parts.append(f'<line class="reference" x1="{x:.1f}" x2="{x:.1f}" y1="4" y2="{bottom}"/>')
    for index, row in enumerate(rows):
        y = TOP + ROW * index
        middle, end = y + ROW / 2, axis.at(row.value)
        shown = f"{row.value:.2f}"
        if row.low is not None and row.high is not None:
            shown += f" ({row.low:.2f}-{row.high:.2f})"
        kind = "bar muted" if row.muted else "bar"
        parts.append(
            f"<g><title>{escape(f'{row.name}: {shown}')}</title>"
            + text("label", left - 8, middle + 4, row.name)
            + f'<rect class="{kind}" x="{left:.1f}" y="{y + 6}" width="{end - left:.1f}" '
            f'height="{ROW - 12}" rx="2"/>'
        )
        after = end
        if row.low is not None and row.high is not None:
            low, after = axis.at(row.low), max(end, axis.at(row.high))
            high = axis.at(row.high)
            parts.append(
                f'<path class="whisker" d="M{low:.1f} {middle - 5:.1f}v10M{low:.1f} {middle:.1f}'
                f'H{high:.1f}M{high:.1f} {middle - 5:.1f}v10"/>'
            )
        parts.append(text("value", after + 7, middle + 4, f"{row.value:.2f}") + "</g>")
    return svg("".join(parts), bottom + BOTTOM, "speedup")


def lines(series: Sequence[Series], across: str, up: str, most: float | None = None) -> str:
    """Points joined by lines, with a legend."""
    return _chart(series, across, up, most, stepped=False)


def steps(series: Sequence[Series], across: str, up: str) -> str:
    """Values that hold until the next, with a legend."""
    return _chart(series, across, up, None, stepped=True)


def shares(rows: Mapping[str, Mapping[str, float]], unit: str) -> str:
    """Stacked horizontal bars: {name: {part: amount}}, the same parts in each."""
    left = 20 + LETTER * max(map(len, rows))
    axis = Axis(max(sum(row.values()) for row in rows.values()) * 1.1, left, WIDTH - RIGHT)
    names = list(next(iter(rows.values())))
    legend, below = legend_of([(name, colour) for colour, name in enumerate(names)])
    top = below + 6
    bottom = top + ROW * len(rows)
    parts = [legend, _vertical_grid(axis, bottom, unit, top)]
    for index, (name, row) in enumerate(rows.items()):
        y = top + ROW * index
        parts.append(text("label", left - 8, y + ROW / 2 + 4, name))
        reached, total = 0.0, sum(row.values())
        for colour, (part, amount) in enumerate(row.items()):
            start, end = axis.at(reached), axis.at(reached + amount)
            reached += amount
            if end - start < 0.2:
                continue
            said = f"{name}, {part}: {amount:.3g} {unit}, {amount / total:.0%}"
            parts.append(
                f'<rect class="part" x="{start:.1f}" y="{y + 6}" width="{end - start:.1f}" '
                f'height="{ROW - 12}" fill="{colour_of(colour)}">'
                f"<title>{escape(said)}</title></rect>"
            )
        parts.append(text("value", axis.at(total) + 7, y + ROW / 2 + 4, f"{total:.3g}"))
    return svg("".join(parts), bottom + BOTTOM, "time by stage")


def _chart(
    series: Sequence[Series], across: str, up: str, most: float | None, *, stepped: bool
) -> str:
    legend, below = legend_of([(each.name, each.colour) for each in series])
    top, height, left = below + 8, 220, 58
    points = [point for each in series for point in each.points]
    first, last = min(x for x, _ in points), max(x for x, _ in points) + stepped
    horizontal = Axis(max(last, first + 1), left + 8, WIDTH - RIGHT, first)
    vertical = Axis(most or 1.08 * max(1e-9, *(y for _, y in points)), top + height, top)
    parts = [legend, _horizontal_grid(vertical, left), _marks(horizontal, top + height)]
    middle = top + height / 2
    parts.append(
        text("axis", (left + WIDTH - RIGHT) / 2, top + height + 38, across)
        + f'<text class="axis" x="14" y="{middle:.0f}" '
        f'transform="rotate(-90 14 {middle:.0f})">{escape(up)}</text>'
    )
    for each in series:
        placed = [(horizontal.at(x), vertical.at(y)) for x, y in each.points]
        path = _steps(placed, horizontal.at(each.points[-1][0] + 1)) if stepped else _joined(placed)
        parts.append(
            f'<path class="line" d="{path}" stroke="{colour_of(each.colour)}">'
            f"<title>{escape(each.name)}</title></path>"
        )
        if not stepped:
            parts += [
                f'<circle class="dot" cx="{px:.1f}" cy="{py:.1f}" r="3.5" '
                f'fill="{colour_of(each.colour)}">'
                f"<title>{escape(each.name)}: {x:g}, {y:.3g}</title></circle>"
                for (px, py), (x, y) in zip(placed, each.points, strict=True)
            ]
    return svg("".join(parts), top + height + 50, up)


Places = Sequence[tuple[float, float]]


def _joined(places: Places) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)


def _steps(places: Places, end: float) -> str:
    """A value holds until the next; the last one until `end`."""
    (x, y), *rest = places
    return f"M{x:.1f} {y:.1f}" + "".join(f"H{x:.1f}V{y:.1f}" for x, y in rest) + f"H{end:.1f}"


def legend_of(names: Sequence[tuple[str, int]]) -> tuple[str, float]:
    """A line or more of named squares, and where it ends."""
    parts, x, y = [], 20.0, 8.0
    for name, colour in names:
        width = 30 + LETTER * len(name)
        if x + width > WIDTH:
            x, y = 20.0, y + 20
        parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="11" height="11" rx="2" '
            f'fill="{colour_of(colour)}"/>' + text("key", x + 16, y + 10, name)
        )
        x += width
    return "".join(parts), y + 20


def _vertical_grid(axis: Axis, bottom: float, unit: str, top: float = 4) -> str:
    parts = []
    for tick in axis.ticks():
        x = axis.at(tick)
        parts.append(
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}"/>'
            + text("tick", x, bottom + 17, f"{tick:g}")
        )
    parts.append(text("axis", (axis.start + axis.end) / 2, bottom + 37, unit))
    return "".join(parts)


def _horizontal_grid(axis: Axis, left: float) -> str:
    parts = []
    for tick in axis.ticks(5):
        y = axis.at(tick)
        parts.append(
            f'<line class="grid" x1="{left}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            + text("label", left - 8, y + 4, f"{tick:g}")
        )
    return "".join(parts)


def _marks(axis: Axis, bottom: float) -> str:
    """Whole numbers under a chart."""
    every = max(1, round((axis.most - axis.least) / 12))
    whole = range(math.ceil(axis.least), math.floor(axis.most) + 1, every)
    return "".join(text("tick", axis.at(tick), bottom + 18, str(tick)) for tick in whole)


def text(kind: str, x: float, y: float, said: str) -> str:
    """Words at a place; kind: their class, which says how they are aligned."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(said)}</text>'


def svg(body: str, height: float, name: str) -> str:
    """A figure of WIDTH by `height`; name: what it shows, for who cannot see it."""
    return (
        f'<svg class="figure" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        f'aria-label="{escape(name)}">{body}</svg>'
    )


def standalone(figure: str) -> str:
    """A figure as a file of its own, with the style that a page would give it."""
    head = '<svg xmlns="http://www.w3.org/2000/svg" class="figure"'
    white = '<rect width="100%" height="100%" fill="#fff"/>'
    opening, inside = figure.replace('<svg class="figure"', head, 1).split(">", 1)
    return f"{opening}><style>{STYLE}</style>{white}{inside}\n"


def colour_of(index: int) -> str:
    """The colour of a series by its number."""
    return PALETTE[index % len(PALETTE)]


def _nice(step: float) -> float:
    """The next of 1, 2, 2.5, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= step * (1 - 1e-9))
