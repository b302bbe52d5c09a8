"""The exact distribution of a pipeline's own parts around a toy target and a toy drafter."""

import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

from attrs import frozen

from draftwood.core.engine import Engine
from draftwood.core.registry.plugin import ProposalForm
from draftwood.testing.controllers import CappedController
from draftwood.testing.exact import TOLERANCE, Comparison
from draftwood.testing.toy_pipelines import FILTERS, HORIZON, ToyPipeline

CASES = 24
_TEMPERATURES = (1.0, 0.5, 1.5, 0.0)


@frozen
class ExactEvidence:
    """Toy pipelines that were enumerated.

    Attributes:
        cases: How many.
        horizon: Number of new tokens of each.
        max_error: Largest difference of one sequence's probability.
        worst: The first biased case, described, and its comparison; None if none is biased.
        reason: Why fewer than CASES were enumerated; None if all were.
    """

    cases: int
    horizon: int
    max_error: float
    worst: tuple[str, Comparison] | None = None
    reason: str | None = None

    @property
    def biased(self) -> bool:
        return self.worst is not None

    def as_dict(self) -> dict[str, Any]:
        biased = None
        if self.worst is not None:
            case, comparison = self.worst
            biased = {
                "case": case,
                "prefix": [*comparison.prompt, *(comparison.prefix or ())],
                "pipeline": {str(k): v for k, v in comparison.output_probs.items()},
                "target": {str(k): v for k, v in comparison.target_probs.items()},
            }
        return {
            "cases": self.cases,
            "horizon": self.horizon,
            "max_error": self.max_error,
            "biased": biased,
            "reason": self.reason,
        }


def check_exact(form: ProposalForm | None, build: Callable[[], dict[str, Any]]) -> ExactEvidence:
    """Enumerate CASES toy pipelines.

    A verifier with a `reference` is replaced by that one.

    Args:
        form: Of the drafter's proposals; None for plain decoding.
        build: Makes fresh parts by kind (tree, controller, verifier), as the pipeline configures
            them. Each case has its own parts, so that no state passes from case to case.
    """
    worst, largest, done = None, 0.0, 0
    # Prices of a scripted machine must not be stored as this machine's.
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.dict(os.environ, {"DRAFTWOOD_CACHE": folder}),
    ):
        for toy, nodes in cases(form):
            try:
                comparison = _compare(toy, nodes, build(), form)
            except Exception as error:  # noqa: BLE001 - a part that cannot be enumerated is a result
                reason = f"{type(error).__name__}: {error}".splitlines()[0]
                return ExactEvidence(done, HORIZON, largest, worst, reason)
            done += 1
            largest = max(largest, comparison.max_error)
            if comparison.max_error > TOLERANCE and worst is None:
                worst = (_described(toy, nodes), comparison)
    return ExactEvidence(done, HORIZON, largest, worst)


def cases(form: ProposalForm | None) -> Iterator[tuple[ToyPipeline, int]]:
    """Toy pipelines, each with the most nodes of its trees.

    Every temperature, filter and size occurs, with and without a penalty.
    """
    for seed in range(CASES):
        yield (
            ToyPipeline(
                drafter=form or "lookup",
                temperature=_TEMPERATURES[seed % 4],
                filters=tuple(FILTERS)[seed // 4 % 4],
                penalty=seed % 3 == 2,
                seed=seed,
            ),
            4 - seed // 2 % 3,
        )


def _compare(
    toy: ToyPipeline, nodes: int, parts: dict[str, Any], form: ProposalForm | None
) -> Comparison:
    verifier = parts["verifier"].reference or parts["verifier"]
    if form is None:
        return toy.compare_engine(Engine(toy.engine().target, verifier))
    controller = CappedController(parts["controller"], nodes)
    return toy.compare(**{**parts, "verifier": verifier, "controller": controller})


def _described(toy: ToyPipeline, nodes: int) -> str:
    penalty = ", repetition penalty" if toy.penalty else ""
    return (
        f"toy {toy.drafter} drafter {toy.seed}, at most {nodes} nodes, "
        f"temperature {toy.temperature}, filter {toy.filters}{penalty}"
    )
