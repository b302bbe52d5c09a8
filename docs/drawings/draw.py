"""Writes the drawings of the documentation: `python docs/drawings/draw.py`.

Each function returns one drawing. Figures come from docs/images/demo.json. A test keeps the
committed files equal to what this script writes.
"""

import json
from collections.abc import Iterable
from html import escape
from pathlib import Path

IMAGES = Path(__file__).parents[1] / "images"
INK, GREY, LINE = "#1f2328", "#59636e", "#8c959f"
PLAIN, DRAFT, DONE, BONUS = "#f6f8fa", "#e0f2f1", "#d2f0da", "#ffe8cc"
EDGES = {PLAIN: LINE, DRAFT: "#00796b", DONE: "#1a7f37", BONUS: "#b35900"}


class Drawing:
    """Shapes on a white sheet; lengths are in pixels."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" aria-label="{escape(title)}">',
            f"<title>{escape(title)}</title>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            f'markerHeight="7" orient="auto-start-reverse"><path d="M0 0L8 4L0 8z" fill="{GREY}"/>'
            "</marker></defs>",
            "<style>text{font-family:system-ui,Segoe UI,Helvetica,Arial,sans-serif;"
            "text-anchor:middle}</style>",
            f'<rect width="{width}" height="{height}" rx="8" fill="#fff"/>',
        ]

    def text(
        self, x: float, y: float, text: str, size: int = 14, colour: str = INK, anchor: str = ""
    ) -> None:
        style = f' style="text-anchor:{anchor}"' if anchor else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}"{style}>'
            f"{escape(text)}</text>"
        )

    def box(
        self, x: float, y: float, width: float, height: float, lines: Iterable[str], fill: str
    ) -> None:
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" '
            f'fill="{fill}" stroke="{EDGES.get(fill, LINE)}" stroke-width="1.5"/>'
        )
        rows = list(lines)
        first = y + height / 2 - (len(rows) - 1) * 9 + 5
        for row, line in enumerate(rows):
            head = row == 0
            self.text(
                x + width / 2, first + 18 * row, line, 14 if head else 12, INK if head else GREY
            )

    def line(
        self,
        *points: tuple[float, float],
        arrow: bool = True,
        colour: str = GREY,
        width: float = 1.5,
    ) -> None:
        path = "M" + "L".join(f"{x:g} {y:g}" for x, y in points)
        tip = ' marker-end="url(#tip)"' if arrow else ""
        self.parts.append(
            f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width:g}"{tip}/>'
        )

    def node(self, x: float, y: float, text: str, fill: str, below: str = "") -> None:
        self.box(x - 32, y - 15, 64, 30, [text], fill)
        if below:
            self.text(x, y + 30, below, 12, GREY)

    def svg(self) -> str:
        return "\n".join([*self.parts, "</svg>", ""])


def one_round() -> Drawing:
    d = Drawing(760, 330, "One round of speculative decoding")
    stages = [
        (["1 Drafter", "proposes next-token", "distributions"], DRAFT),
        (["2 Tree policy", "grows a draft tree", "from them"], DRAFT),
        (["3 Controller", "keeps the first", "N nodes"], DRAFT),
    ]
    for i, (lines, fill) in enumerate(stages):
        d.box(30 + 250 * i, 60, 190, 76, lines, fill)
    below = [
        (["6 Commit", "K/V of accepted nodes stays,", "the rest is dropped"], PLAIN),
        (["5 Verifier", "accepts a path and adds", "one bonus token"], DONE),
        (["4 Target", "one forward pass over", "all N + 1 nodes"], PLAIN),
    ]
    for i, (lines, fill) in enumerate(below):
        d.box(30 + 250 * i, 200, 190, 76, lines, fill)
    for i in range(2):
        d.line((220 + 250 * i, 98), (278 + 250 * i, 98))
        d.line((530 - 250 * i, 238), (472 - 250 * i, 238))
    d.text(249, 88, "proposal", 12, GREY)
    d.text(499, 88, "tree", 12, GREY)
    d.line((625, 136), (625, 198))
    d.text(680, 172, "cut tree", 12, GREY)
    d.text(500, 228, "logits", 12, GREY)
    d.text(250, 228, "verdict", 12, GREY)
    d.line((125, 200), (125, 138))
    d.text(190, 172, "next round", 12, GREY)
    d.text(380, 34, "One round commits 1 to (depth + 1) tokens", 15)
    d.text(
        380,
        310,
        "The controller also sets the limits before step 1 and learns from the times",
        13,
        GREY,
    )
    return d


def proposals() -> Drawing:
    d = Drawing(760, 300, "What the next distribution depends on, for each form of proposal")
    columns = [
        ("factorized", "the depth only", "DFlash"),
        ("markov", "the parent token", "DFlash 2"),
        ("mixture", "branch weights", "DBlast"),
        ("autoregressive", "the whole path", "EAGLE-3, draft_model"),
        ("lookup", "paths, no distribution", "ngram"),
    ]
    for i, (form, depends, example) in enumerate(columns):
        x = 80 + 150 * i
        d.text(x, 34, form, 15)
        for depth in range(3):
            d.node(x, 76 + 62 * depth, ["anchor", "x", "?"][depth], [PLAIN, DRAFT, BONUS][depth])
        if form == "factorized":
            d.text(x + 56, 205, "d = 2", 12, GREY)
        if form in ("markov", "autoregressive", "lookup", "mixture"):
            d.line((x, 153), (x, 184))
        if form in ("autoregressive", "lookup", "mixture"):
            d.line((x, 91), (x, 122))
        if form == "mixture":
            d.text(x + 42, 112, "w1..wK", 11, GREY)
            d.text(x + 42, 174, "w1..wK", 11, GREY)
        d.text(x, 250, depends, 12)
        d.text(x, 272, example, 12, GREY)
    return d


def trees() -> Drawing:
    d = Drawing(760, 330, "A draft tree in growth order, and a budget as a cut")
    places = {
        0: (90, 150, "anchor", 1.0, None),
        1: (230, 90, "return", 0.6, 0),
        2: (370, 60, "x", 0.42, 1),
        3: (230, 210, "if", 0.3, 0),
        4: (510, 60, "\\n", 0.25, 2),
        5: (370, 210, "not", 0.15, 3),
        6: (370, 130, "None", 0.12, 1),
    }
    for node, (x, y, _, _, parent) in places.items():
        if parent is not None:
            px, py = places[parent][:2]
            d.line((px + 32, py), (x - 34, y), arrow=False, colour=LINE if node > 4 else "#00796b")
    for node, (x, y, token, rho, _) in places.items():
        fill = PLAIN if node == 0 or node > 4 else DRAFT
        d.node(x, y, token, fill, f"node {node}, rho {rho:g}")
    d.line((590, 40), (590, 250), arrow=False, colour=LINE)
    d.text(675, 70, "budget N", 14)
    total = 1.0
    for row, rho in enumerate([0.6, 0.42, 0.3, 0.25, 0.15, 0.12], 1):
        total += rho
        d.text(675, 78 + 22 * row, f"{row}: expects {total:.2f}", 12, INK if row <= 4 else GREY)
    d.text(380, 286, "Nodes are numbered in growth order, so every prefix is a tree.", 14)
    d.text(380, 310, "Green: budget 4. A larger budget keeps these nodes and adds more.", 13, GREY)
    return d


def verification() -> Drawing:
    d = Drawing(760, 300, "A verifier walks the tree and adds a bonus token")
    steps = [
        (90, 150, "anchor", DONE, None),
        (250, 90, "return", DONE, 0),
        (250, 210, "if", PLAIN, 0),
        (410, 60, "x", DONE, 1),
        (410, 130, "None", PLAIN, 1),
        (570, 60, "\\n", PLAIN, 3),
    ]
    for x, y, _, fill, parent in steps:
        if parent is not None:
            px, py = steps[parent][:2]
            good = fill is DONE
            d.line((px + 32, py), (x - 34, y), arrow=good, colour=EDGES[DONE] if good else LINE)
    for x, y, token, fill, _ in steps:
        d.node(x, y, token, fill)
    d.node(570, 130, "+ 1", BONUS)
    d.line((442, 66), (538, 122), colour=EDGES[BONUS])
    d.text(655, 66, "rejected", 12, GREY)
    d.text(680, 126, "bonus token, drawn", 12, GREY)
    d.text(680, 142, "from the target", 12, GREY)
    d.text(380, 264, "The target gave a distribution p after every node in one forward pass.", 14)
    d.text(380, 286, "Committed: return, x, + 1. Every committed token follows p.", 13, GREY)
    return d


def cache() -> Drawing:
    d = Drawing(760, 330, "The key/value cache in one round")
    cell = 44

    def row(y: int, label: str, cells: list[tuple[str, str]]) -> None:
        d.text(24, y + 22, label, 13, INK, "start")
        for i, (name, fill) in enumerate(cells):
            d.box(150 + cell * i, y, cell - 4, 34, [name], fill)

    past = [(f"c{i}", PLAIN) for i in range(6)]
    row(30, "before", past)
    row(
        100,
        "forward pass",
        [*past, ("a", DONE), ("1", DONE), ("2", DRAFT), ("3", DONE), ("4", DRAFT)],
    )
    row(200, "after commit", [*past, ("a", DONE), ("1", DONE), ("3", DONE)])
    for start, end in ((6, 6), (7, 7), (9, 8)):
        x, to = 150 + cell * start + 20, 150 + cell * end + 20
        d.line((x, 136), (to, 198))
    d.text(414, 88, "committed context stays where it is; the tree is written behind it", 12, GREY)
    d.line((238, 250), (238, 262), (546, 262), (546, 250), arrow=False)
    d.text(392, 280, "a sliding window counts positions (context + depth), not cells", 12, GREY)
    d.text(
        380, 312, "Accepted rows move up. Nothing else is copied, however long the context is.", 14
    )
    return d


def losslessness() -> Drawing:
    d = Drawing(760, 280, "Two promises: the same distribution, and the same tokens")
    d.box(
        30,
        30,
        330,
        92,
        [
            "Distribution",
            "Every token follows the target's p,",
            "for every verifier and temperature",
        ],
        DONE,
    )
    d.box(
        400,
        30,
        330,
        92,
        [
            "Parity",
            "The tokens are those of plain decoding:",
            "at temperature 0, and with match by seed",
        ],
        DONE,
    )
    d.box(30, 170, 330, 70, ["Proven", "by enumerating every draw, to 1e-12"], PLAIN)
    d.box(400, 170, 330, 70, ["Tested", "token by token, with the target's margin shown"], PLAIN)
    d.line((195, 168), (195, 124))
    d.line((565, 168), (565, 124))
    d.text(380, 266, "Each check also rejects verifiers that are wrong on purpose.", 13, GREY)
    return d


def speed() -> Drawing:
    rows = json.loads((IMAGES / "demo.json").read_text(encoding="utf-8"))
    d = Drawing(760, 70 + 34 * len(rows["pipelines"]), "Speed of the demo's pipelines")
    scale = 430 / 2.5
    d.text(
        24, 30, "times as fast as plain decoding, same text (higher is better)", 14, INK, "start"
    )
    for i, (name, value) in enumerate(rows["pipelines"].items()):
        y = 48 + 34 * i
        fill = DONE if name == "bastion" else DRAFT
        fill = PLAIN if name in ("plain", "hf-generate") else fill
        d.text(160, y + 17, name, 14, INK, "end")
        width = scale * value["times_plain"]
        d.box(172, y, width, 25, [], fill)
        text = f"{value['times_plain']:.2f}"
        if value["tokens_per_round"]:
            text += f"  ({value['tokens_per_round']:.2f} tokens a round)"
        d.text(182 + width, y + 17, text, 13, GREY, "start")
    return d


DRAWINGS = {
    "round": one_round,
    "proposals": proposals,
    "trees": trees,
    "verification": verification,
    "cache": cache,
    "losslessness": losslessness,
    "speed": speed,
}

if __name__ == "__main__":
    for name, draw in DRAWINGS.items():
        (IMAGES / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")
