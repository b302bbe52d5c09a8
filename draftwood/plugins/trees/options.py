"""YAML options of the bundled tree policies. Imports no torch.

`score_temperature` is shared: trees are judged by `match`, which is exact for any scores, and the
drafter's distribution at a low temperature is far too sure of itself to rank nodes or to set a
budget."""

from typing import Any, Literal

from attrs import Attribute, field, frozen
from attrs.validators import deep_iterable, ge, gt, optional

from draftwood.core.draws import Draws

RankPath = tuple[int, ...]


@frozen
class ChainOptions:
    """One path of best tokens.

    length: most draft nodes, None for as deep as the drafter goes. score_temperature: of the
    distribution that path scores come from, None for the request's own but at least 0.8 (1.3 for a
    Markov distribution)."""

    length: int | None = field(default=None, validator=optional(ge(1)))
    score_temperature: float | None = field(default=None, validator=optional(gt(0.0)))


@frozen
class BestFirstOptions:
    """The tree of highest path scores (BASTION).

    max_nodes: most draft nodes. score_temperature: of the distribution that path scores come from,
    None for the request's own but at least 0.8 (1.3 for a Markov distribution). form: heap (on the
    host), by_level (tensors), or auto: the heap on a CPU where the proposal has a table; the result
    is the same."""

    max_nodes: int = field(default=256, validator=ge(1))
    score_temperature: float | None = field(default=None, validator=optional(gt(0.0)))
    form: Literal["auto", "search", "by_level"] = "auto"


@frozen
class DynamicOptions:
    """A beam of each level, then the best of all levels (EAGLE-2 and EAGLE-3).

    top_k: most nodes of a level that are gone on from, and most children of each. depth: deepest
    level. total_tokens: most draft nodes. score_temperature: of the distribution that path scores
    come from, None for the request's own but at least 0.8 (1.3 for a Markov distribution)."""

    top_k: int = field(default=10, validator=ge(1))
    depth: int = field(default=7, validator=ge(1))
    total_tokens: int = field(default=60, validator=ge(1))
    score_temperature: float | None = field(default=None, validator=optional(gt(0.0)))


def _prefix_closed(_: object, attribute: "Attribute[Any]", paths: tuple[RankPath, ...]) -> None:
    """Every rank path is non-empty, non-negative, listed once, and hangs from a listed one."""
    for path in paths:
        if not path or min(path) < 0:
            raise ValueError(
                f"{attribute.name}: {list(path)} is not a rank path; [0, 2] is the third-best "
                "token after the best one"
            )
        if len(path) > 1 and path[:-1] not in paths:
            raise ValueError(
                f"{attribute.name}: {list(path)} hangs from {list(path[:-1])}, which is not "
                "listed; list every prefix of a path"
            )
        if paths.count(path) > 1:
            raise ValueError(f"{attribute.name}: {list(path)} is listed twice")


@frozen
class StaticOptions:
    """One shape for every round.

    topology: eagle, the 25 nodes of EAGLE-1. paths: a shape of one's own as rank paths, [[0], [1],
    [0, 0]] for the two best first tokens and the best one after the best; it replaces topology.
    score_temperature: of the distribution that path scores come from, None for the request's own
    but at least 0.8 (1.3 for a Markov distribution)."""

    topology: Literal["eagle"] = "eagle"
    paths: tuple[RankPath, ...] = field(default=(), validator=_prefix_closed)
    score_temperature: float | None = field(default=None, validator=optional(gt(0.0)))


@frozen
class BranchesOptions:
    """The greedy branches of a mixture, merged where they agree.

    score_temperature: of the distribution that path scores come from, None for the request's own
    but at least 0.8."""

    score_temperature: float | None = field(default=None, validator=optional(gt(0.0)))


@frozen
class LotteryOptions:
    """One greedy branch of a mixture, drawn from its prior (DBlast as published).

    length: most draft nodes, None for as deep as the drafter goes.
    """

    length: int | None = field(default=None, validator=optional(ge(1)))


@frozen
class SampledOptions:
    """Chains and trees drawn from the proposal's own distribution.

    widths: children of each node, depth by depth: [3, 2, 1] draws 3, then 2 for each, then 1 for
    each; empty draws a chain as deep as the drafter goes. replacement: whether siblings are
    independent draws (duplicates happen) or drawn without replacement.
    """

    widths: tuple[int, ...] = field(default=(), validator=deep_iterable(ge(1)))
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
