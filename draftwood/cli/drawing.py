"""Draws verified trees: as text in a terminal, and as one self-contained SVG.

Both show every verified node with its token and path score, and mark the accepted path and the
bonus token.
"""

from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING

from attrs import frozen

from draftwood.cli.options import counted

if TYPE_CHECKING:
    from rich.tree import Tree

    from draftwood.core.tree import TokenTree
    from draftwood.core.values import RoundStats

Decode = Callable[[Sequence[int]], str]

ACCEPTED, REJECTED, BONUS = "#1a7f37", "#8c959f", "#9a6700"
ROW, COLUMN, BOX, MARGIN = 30, 150, 118, 24


def visible(text: str, *, ascii_only: bool = False) -> str:
    """Token text with blanks made visible: · for a space, ⏎ for a line's end, → for a tab.

    Args:
        text: The token's text.
        ascii_only: Use _ for a space and Python's escapes for the rest.
    """
    if ascii_only:
        escaped = text.encode("unicode_escape").decode("ascii")
        return escaped.replace(" ", "_") or "''"
    return text.replace(" ", "·").replace("\n", "⏎").replace("\t", "→") or "∅"


def caption(stats: "RoundStats") -> str:
    """One line on a round."""
    return (
        f"round {stats.round}: {stats.budget} of {counted(stats.grown, 'node')} verified, "
        f"{stats.accepted} accepted + bonus, {stats.committed} committed"
    )


def text_tree(stats: "RoundStats", decode: Decode, *, ascii_only: bool = False) -> "Tree":
    """A rich tree of one round; * marks accepted nodes and + the bonus, with colour or without.

    Args:
        stats: The round.
        decode: Token ids -> text.
        ascii_only: Whether the terminal shows ASCII alone.
    """
    from rich.text import Text
    from rich.tree import Tree

    tree, accepted = stats.tree, set(stats.verdict.accepted)
    rho = tree.log_rho.exp().tolist()

    def token(id_: int) -> str:
        return visible(decode([id_]), ascii_only=ascii_only)

    def label(node: int) -> Text:
        mark, style = ("* ", "bold green") if node in accepted else ("  ", "dim")
        text = Text(mark + token(tree.token_list[node]), style=style)
        return text.append(f"  {rho[node]:.2f}", style="dim") if node else text

    def grow(branch: Tree, node: int) -> None:
        for child in tree.children[node]:
            grow(branch.add(label(child)), child)
        if node == stats.verdict.accepted[-1] and stats.verdict.bonus is not None:
            branch.add(Text(f"+ {token(stats.verdict.bonus)}  bonus", style="bold yellow"))

    root = Tree(label(0))
    grow(root, 0)
    return root


@frozen
class _Place:
    """Where a node is drawn: row and column, from zero."""

    row: float
    column: int


def _places(tree: "TokenTree", bonus_under: int) -> tuple[list[_Place], _Place, int]:
    """A row per leaf, parents in the middle of their children; the bonus is a leaf of its own.

    Returns the nodes' places, the bonus's, and how many rows there are.
    """
    rows: dict[int, float] = {}
    bonus = _Place(0, 0)
    used = 0

    def place(node: int) -> None:
        nonlocal used, bonus
        below = []
        for child in tree.children[node]:
            place(child)
            below.append(rows[child])
        if node == bonus_under:
            bonus = _Place(used, tree.depth_list[node] + 1)
            below.append(used)
            used += 1
        if not below:
            below.append(used)
            used += 1
        rows[node] = (below[0] + below[-1]) / 2

    place(0)
    return [_Place(rows[i], tree.depth_list[i]) for i in range(len(tree))], bonus, used


def svg(rounds: Sequence["RoundStats"], decode: Decode, title: str) -> str:
    """A standalone SVG document of these rounds, one under the other."""
    parts, top, widest = [], 2 * ROW, 0
    for stats in rounds:
        body, height, width = _round_svg(stats, decode, top)
        parts.append(body)
        top += height
        widest = max(widest, width)
    style = (
        "text{font:12px ui-monospace,Menlo,Consolas,monospace;fill:#1f2328}"
        ".small{font-size:10px;fill:#59636e}.title{font-weight:600}"
        "rect{fill:#fff;stroke-width:1}path{fill:none}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{widest}" height="{top}" '
        f'viewBox="0 0 {widest} {top}" role="img">'
        f"<title>{escape(title)}</title><style>{style}</style>"
        f'<rect width="100%" height="100%" style="stroke:none"/>'
        f'<text class="title" x="{MARGIN}" y="{ROW}">{escape(title)}</text>'
        f"{''.join(parts)}</svg>\n"
    )


def _round_svg(stats: "RoundStats", decode: Decode, top: float) -> tuple[str, int, int]:
    tree, accepted = stats.tree, set(stats.verdict.accepted)
    last = stats.verdict.accepted[-1]
    places, bonus, rows = _places(tree, last)
    rho = tree.log_rho.exp().tolist()
    edges, boxes = [], []

    def at(place: _Place) -> tuple[float, float]:
        return MARGIN + place.column * COLUMN, top + (place.row + 1) * ROW

    def edge(parent: _Place, child: _Place, colour: str, weight: float) -> None:
        (x0, y0), (x1, y1) = at(parent), at(child)
        middle = (x0 + BOX + x1) / 2
        edges.append(
            f'<path d="M{x0 + BOX:g} {y0:g}C{middle:g} {y0:g} {middle:g} {y1:g} {x1:g} {y1:g}" '
            f'stroke="{colour}" stroke-width="{weight:g}"/>'
        )

    def box(place: _Place, token: int, note: str, colour: str, bold: bool) -> None:
        x, y = at(place)
        text = visible(decode([token]))
        text = text if len(text) <= 10 else text[:9] + "…"
        boxes.append(
            f'<rect x="{x:g}" y="{y - 11:g}" width="{BOX}" height="22" rx="5" '
            f'style="stroke:{colour};stroke-width:{2 if bold else 1}"/>'
            f'<text x="{x + 8:g}" y="{y + 4:g}">{escape(text)}</text>'
            f'<text class="small" x="{x + BOX - 6:g}" y="{y + 4:g}" text-anchor="end">{note}</text>'
        )

    for node in range(len(tree)):
        taken = node in accepted
        colour = ACCEPTED if taken else REJECTED
        if node:
            edge(places[tree.parent_list[node]], places[node], colour, 2 if taken else 1)
        box(places[node], tree.token_list[node], f"{rho[node]:.2f}" if node else "", colour, taken)
    if stats.verdict.bonus is not None:
        edge(places[last], bonus, BONUS, 2)
        box(bonus, stats.verdict.bonus, "bonus", BONUS, bold=True)
    columns = max([bonus.column, *tree.depth_list]) + 1
    label = f'<text class="small" x="{MARGIN}" y="{top:g}">{escape(caption(stats))}</text>'
    width = 2 * MARGIN + (columns - 1) * COLUMN + BOX
    return label + "".join(edges) + "".join(boxes), int((rows + 2) * ROW), width
