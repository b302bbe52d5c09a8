"""Covering arrays: few pipelines of the grid that hold every combination of a few axes' values."""

import heapq
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import evolve

from draftwood.testing.toy_pipelines import (
    CONTROLLERS,
    EVERY_TREE,
    FILTERS,
    FORMS,
    TEMPERATURES,
    VERIFIERS,
    ToyPipeline,
)

AXES: Mapping[str, Sequence[Any]] = {
    "drafter": FORMS,
    "tree": tuple(EVERY_TREE),
    "verifier": tuple(VERIFIERS),
    "controller": tuple(CONTROLLERS),
    "temperature": TEMPERATURES,
    "filters": tuple(FILTERS),
    "penalty": (False, True),
}
"""Every axis of the grid with all its values."""


def grid(axes: Mapping[str, Sequence[Any]] = AXES) -> list[ToyPipeline]:
    """Every toy pipeline whose parts fit, each with its own seed."""
    pipelines = (
        ToyPipeline(**dict(zip(axes, values, strict=True)))
        for values in itertools.product(*axes.values())
    )
    fitting = (pipeline for pipeline in pipelines if not pipeline.refused)
    return [evolve(pipeline, seed=seed) for seed, pipeline in enumerate(fitting)]


def covering(
    pipelines: Sequence[ToyPipeline],
    strength: int,
    where: Callable[[ToyPipeline], bool] = lambda pipeline: True,
) -> list[ToyPipeline]:
    """Choose pipelines in which any `strength` axes take every combination that they take in all.

    Greedy and deterministic: each time the pipeline with most combinations not covered yet. What a
    pipeline adds only falls as others are chosen, so that stale counts in the heap are upper
    bounds.

    Args:
        pipelines: To choose from.
        strength: Number of axes that are combined.
        where: Only pipelines of which this holds are considered.
    """
    pipelines = [pipeline for pipeline in pipelines if where(pipeline)]
    varying = [name for name in AXES if len({getattr(each, name) for each in pipelines}) > 1]
    combinations = [
        {
            tuple((name, getattr(pipeline, name)) for name in names)
            for names in itertools.combinations(varying, strength)
        }
        for pipeline in pipelines
    ]
    uncovered = set().union(*combinations)
    heap = [(-len(each), index) for index, each in enumerate(combinations)]
    heapq.heapify(heap)
    chosen = []
    while uncovered:
        _, index = heapq.heappop(heap)
        gain = len(combinations[index] & uncovered)
        if heap and -gain > heap[0][0]:
            heapq.heappush(heap, (-gain, index))
            continue
        chosen.append(pipelines[index])
        uncovered -= combinations[index]
    return chosen
