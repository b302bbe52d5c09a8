"""The exact distribution of a pipeline's own parts around a toy target and a toy drafter."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from attrs import evolve, frozen

from draftwood.core.engine import Engine
from draftwood.core.interfaces import BudgetController, ControllerState, CostProbe
from draftwood.core.registry.plugin import ProposalForm
from draftwood.core.tree import TokenTree
from draftwood.core.values import Limits, RoundContext, RoundStats
from draftwood.testing.cells import FILTERS, HORIZON, PROMPT, Cell
from draftwood.testing.exact import TOLERANCE, Comparison, compare

CASES = 24
_TEMPERATURES = (1.0, 0.5, 1.5, 0.0)


@frozen
class Exact:
    """cases: toy pipelines enumerated. horizon: tokens. max_error: largest difference of one
    sequence's probability. worst: the first biased case and where it goes wrong, None if none
    does. reason: why fewer cases than CASES were enumerated, None if all were."""

    cases: int
    horizon: int
    max_error: float
    worst: tuple[str, Comparison] | None = None
    reason: str | None = None

    @property
    def biased(self) -> bool:
        return self.worst is not None

    def as_dict(self) -> dict[str, Any]:
        found = None
        if self.worst is not None:
            case, comparison = self.worst
            found = {
                "case": case,
                "prefix": [*comparison.prompt, *(comparison.prefix or ())],
                "pipeline": {str(k): v for k, v in comparison.found.items()},
                "target": {str(k): v for k, v in comparison.wanted.items()},
            }
        return {
            "cases": self.cases,
            "horizon": self.horizon,
            "max_error": self.max_error,
            "biased": found,
            "reason": self.reason,
        }


def check_exact(form: ProposalForm | None, build: Callable[[], dict[str, Any]]) -> Exact:
    """Enumerate CASES toy pipelines.

    form: of the drafter's distribution, None for plain decoding. build: fresh parts by kind (tree,
    controller, verifier), each as the pipeline configures it; every case has its own, so none can
    lean on what another left behind. A verifier that decides as another does, its `reference`, is
    enumerated by that one.
    """
    worst, largest, done = None, 0.0, 0
    with _own_cache():
        for cell, nodes in cases(form):
            try:
                comparison = _compare(cell, nodes, build(), form)
            except Exception as error:  # noqa: BLE001 - a part that cannot be enumerated is a finding
                reason = f"{type(error).__name__}: {error}".splitlines()[0]
                return Exact(done, HORIZON, largest, worst, reason)
            done += 1
            largest = max(largest, comparison.max_error)
            if comparison.max_error > TOLERANCE and worst is None:
                worst = (_described(cell, nodes), comparison)
    return Exact(done, HORIZON, largest, worst)


def cases(form: ProposalForm | None) -> Iterator[tuple[Cell, int]]:
    """Toy settings, and the most nodes of a tree: every temperature, filter and size, with and
    without a penalty."""
    for seed in range(CASES):
        yield (
            Cell(
                drafter=form or "lookup",
                temperature=_TEMPERATURES[seed % 4],
                filters=tuple(FILTERS)[seed // 4 % 4],
                penalty=seed % 3 == 2,
                seed=seed,
            ),
            4 - seed // 2 % 3,
        )


def _compare(
    cell: Cell, nodes: int, parts: dict[str, Any], form: ProposalForm | None
) -> Comparison:
    verifier = parts["verifier"].reference or parts["verifier"]
    parts = {**parts, "verifier": verifier}
    if form is None:
        engine = Engine(cell.engine().target, verifier)
    else:
        engine = cell.engine(**{**parts, "controller": Capped(parts["controller"], nodes)})
    return compare(engine, PROMPT, HORIZON, cell.options, cell.processors)


def _described(cell: Cell, nodes: int) -> str:
    penalty = ", repetition penalty" if cell.penalty else ""
    return (
        f"toy {cell.drafter} drafter {cell.seed}, at most {nodes} nodes, "
        f"temperature {cell.temperature}, filter {cell.filters}{penalty}"
    )


class Capped(BudgetController[Any, Any]):
    """A controller that allows no more nodes than can be enumerated: a limit set before the round,
    which keeps every distribution."""

    def __init__(self, inner: BudgetController[Any, Any], nodes: int) -> None:
        self.inner, self.nodes = inner, nodes

    def init(self, costs: CostProbe) -> Any:
        return self.inner.init(costs)

    def open(self) -> Any:
        return self.inner.open()

    def before_draft(self, ctx: RoundContext, state: ControllerState[Any, Any]) -> Limits:
        limits = self.inner.before_draft(ctx, state)
        return evolve(limits, nodes=min(limits.nodes, self.nodes))

    def should_expand(
        self, growth: TokenTree, ctx: RoundContext, state: ControllerState[Any, Any]
    ) -> bool:
        return self.inner.should_expand(growth, ctx, state)

    def choose(self, tree: TokenTree, ctx: RoundContext, state: ControllerState[Any, Any]) -> int:
        return self.inner.choose(tree, ctx, state)

    def observe(
        self, stats: RoundStats, state: ControllerState[Any, Any]
    ) -> ControllerState[Any, Any]:
        return self.inner.observe(stats, state)


@contextmanager
def _own_cache() -> Iterator[None]:
    """Prices of a made-up machine must not be stored as this one's."""
    before = os.environ.get("DRAFTWOOD_CACHE")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DRAFTWOOD_CACHE"] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ["DRAFTWOOD_CACHE"]
            else:
                os.environ["DRAFTWOOD_CACHE"] = before
