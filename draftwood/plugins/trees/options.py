"""YAML options of the bundled tree policies. Imports no torch.

Policies of deterministic trees have a `score_temperature`: `match` is exact for any scores, and a
drafter's distribution at a low temperature is too sharp to rank nodes or to set a budget.
"""

from collections import Counter
from itertools import accumulate
from operator import mul
from typing import Any, Literal

from attrs import Attribute, field, frozen
from attrs.validators import and_, ge, gt, le, optional

from draftwood.core.draws import Draws
from draftwood.core.options import MAX_DEPTH, MAX_NODES

RankPath = tuple[int, ...]


@frozen
class ChainOptions:
    """One path of most likely tokens.

    Attributes:
        length: Most draft nodes; None for as deep as the drafter goes.
        score_temperature: Temperature of the distributions that path scores come from; None for the
            request's own, but at least 0.8 (1.3 for DFlash 2).
    """

    length: int | None = field(default=None, validator=optional(and_(ge(1), le(MAX_DEPTH))))
    score_temperature: float | None = field(default=None, validator=optional(gt(0.0)))


@frozen
class BestFirstOptions:
    """The tree of highest path scores (BASTION).

    Attributes:
        max_nodes: Most draft nodes.
        score_temperature: Temperature of the distributions that path scores come from; None for the
            request's own, but at least 0.8 (1.3 for DFlash 2).
        form: search (a best-first search on the host), by_level (tensors on the drafter's device),
            or auto: search on a CPU where the proposal has a table. The trees are the same.
    """

    max_nodes: int = field(default=256, validator=and_(ge(1), le(MAX_NODES)))
    score_temperature: float | None = field(default=None, validator=optional(gt(0.0)))
    form: Literal["auto", "search", "by_level"] = "auto"


@frozen
class DynamicOptions:
    """A beam of each level, then the best of all levels (EAGLE-2 and EAGLE-3).

    Attributes:
        top_k: Most nodes of a level that are expanded, and most children of each.
        depth: Deepest level.
        total_tokens: Most draft nodes.
        score_temperature: Temperature of the distributions that path scores come from; None for the
            request's own, but at least 0.8 (1.3 for DFlash 2).
    """

    top_k: int = field(default=10, validator=and_(ge(1), le(MAX_NODES)))
    depth: int = field(default=7, validator=and_(ge(1), le(MAX_DEPTH)))
    total_tokens: int = field(default=60, validator=and_(ge(1), le(MAX_NODES)))
    score_temperature: float | None = field(default=None, validator=optional(gt(0.0)))


def _prefix_closed(_: object, attribute: "Attribute[Any]", paths: tuple[RankPath, ...]) -> None:
    """Every rank path is non-empty, non-negative, listed once, and hangs from a listed one."""
    if len(paths) > MAX_NODES:
        raise ValueError(f"{attribute.name}: at most {MAX_NODES} paths, got {len(paths)}")
    counts = Counter(paths)
    for path in paths:
        if len(path) > MAX_DEPTH or any(rank >= MAX_NODES for rank in path):
            raise ValueError(
                f"{attribute.name}: a path has at most {MAX_DEPTH} ranks below {MAX_NODES}, got "
                f"{len(path)} up to {max(path)}"
            )
        if not path or min(path) < 0:
            raise ValueError(
                f"{attribute.name}: {list(path)} is not a rank path; [0, 2] is the third-best "
                "token after the best one"
            )
        if len(path) > 1 and path[:-1] not in counts:
            raise ValueError(
                f"{attribute.name}: {list(path)} hangs from {list(path[:-1])}, which is not "
                "listed; list every prefix of a path"
            )
        if counts[path] > 1:
            raise ValueError(f"{attribute.name}: {list(path)} is listed twice")


@frozen
class StaticOptions:
    """One shape for every round.

    Attributes:
        topology: eagle, the 25 nodes of EAGLE-1.
        paths: Another shape as rank paths; it replaces topology. [[0], [1], [0, 0]] is the two most
            likely first tokens, and the most likely one after the first.
        score_temperature: Temperature of the distributions that path scores come from; None for the
            request's own, but at least 0.8 (1.3 for DFlash 2).
    """

    topology: Literal["eagle"] = "eagle"
    paths: tuple[RankPath, ...] = field(default=(), validator=_prefix_closed)
    score_temperature: float | None = field(default=None, validator=optional(gt(0.0)))


@frozen
class BranchesOptions:
    """The greedy branches of a mixture, merged where they share a prefix.

    Attributes:
        score_temperature: Temperature of the distributions that path scores come from; None for the
            request's own, but at least 0.8.
    """

    score_temperature: float | None = field(default=None, validator=optional(gt(0.0)))


@frozen
class LotteryOptions:
    """One greedy branch of a mixture, drawn from its prior (DBlast as published).

    Attributes:
        length: Most draft nodes; None for as deep as the drafter goes.
    """

    length: int | None = field(default=None, validator=optional(and_(ge(1), le(MAX_DEPTH))))


def _drawable(_: object, attribute: "Attribute[Any]", widths: tuple[int, ...]) -> None:
    """Every width is at least 1, and the tree is not too large."""
    if any(width < 1 for width in widths):
        raise ValueError(f"'{attribute.name}' must each be >= 1: {list(widths)}")
    if len(widths) > MAX_DEPTH or sum(accumulate(widths, mul)) > MAX_NODES:
        raise ValueError(
            f"'{attribute.name}' make a tree of more than {MAX_NODES} nodes or {MAX_DEPTH} levels"
        )


@frozen
class SampledOptions:
    """Chains and trees drawn from the proposal's own distribution.

    Attributes:
        widths: Children of each node, depth by depth: [3, 2, 1] draws 3, then 2 for each, then 1
            for each. Empty draws a chain as deep as the drafter goes.
        replacement: Whether siblings are independent draws, which may repeat a token, or drawn
            without replacement.
    """

    widths: tuple[int, ...] = field(default=(), validator=_drawable)
    replacement: bool = False

    def __attrs_post_init__(self) -> None:
        if self.replacement and self.is_chain:
            raise ValueError("replacement: a chain has no siblings to draw with replacement")

    @property
    def is_chain(self) -> bool:
        return all(width == 1 for width in self.widths)

    @property
    def draws(self) -> Draws:
        if self.is_chain:
            return Draws.CHAIN
        return Draws.IID if self.replacement else Draws.WITHOUT_REPLACEMENT
