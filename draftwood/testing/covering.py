"""Covering arrays: few cells of a grid in which every combination of a few axes' values occurs."""

import heapq
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import evolve

from draftwood.testing.cells import (
    CONTROLLERS,
    EVERY_TREE,
    FILTERS,
    FORMS,
    TEMPERATURES,
    VERIFIERS,
    Cell,
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
"""Every axis of the matrix, full."""


def grid(axes: Mapping[str, Sequence[Any]] = AXES) -> list[Cell]:
    """Every cell that is not refused, each with a seed of its own."""
    cells = (
        Cell(**dict(zip(axes, values, strict=True))) for values in itertools.product(*axes.values())
    )
    return [evolve(cell, seed=seed) for seed, cell in enumerate(c for c in cells if not c.refused)]


def covering(
    cells: Sequence[Cell], strength: int, where: Callable[[Cell], bool] = lambda cell: True
) -> list[Cell]:
    """Some of `cells` in which any `strength` axes take every combination of values that they
    take in all of them. where: only among cells of which this holds.

    Greedy and deterministic: each time the cell with most combinations not seen yet. What a cell
    adds only falls as others are taken, so stale counts in the heap are upper bounds.
    """
    cells = [cell for cell in cells if where(cell)]
    names = [name for name in AXES if len({getattr(cell, name) for cell in cells}) > 1]
    combinations = [
        {
            tuple((name, getattr(cell, name)) for name in chosen)
            for chosen in itertools.combinations(names, strength)
        }
        for cell in cells
    ]
    missing = set().union(*combinations)
    heap = [(-len(each), index) for index, each in enumerate(combinations)]
    heapq.heapify(heap)
    taken = []
    while missing:
        _, index = heapq.heappop(heap)
        gain = len(combinations[index] & missing)
        if heap and -gain > heap[0][0]:
            heapq.heappush(heap, (-gain, index))
            continue
        taken.append(cells[index])
        missing -= combinations[index]
    return taken
