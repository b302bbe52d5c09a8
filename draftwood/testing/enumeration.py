"""Randomness that explores every outcome with its probability, instead of drawing one."""

from collections.abc import Callable, Iterator
from typing import TypeVar

from torch import Tensor

from draftwood.core.errors import TestingError
from draftwood.core.randomness import Randomness

T = TypeVar("T")
Key = tuple[str, int, int]


class Enumerating(Randomness):
    """Follows a script of choices, then always the first outcome, and records the alternatives.

    A key (stream, position, draw) used twice is an error: with a real generator both draws would
    be one and the same number, which biases the output without any other sign.
    """

    def __init__(self, script: tuple[int, ...] = (), used: frozenset[Key] = frozenset()) -> None:
        self.script = script
        self.probability = 1.0
        self.branching: list[int] = []
        self.used: set[Key] = set(used)
        self._root, self._name = self, ""

    def stream(self, name: str) -> "Enumerating":
        child = object.__new__(type(self))
        child._root, child._name = self._root, f"{self._name}/{name}"
        return child

    def categorical(self, probs: Tensor, position: int, draw: int = 0) -> int:
        weights = probs.tolist()
        support = [index for index, weight in enumerate(weights) if weight > 0]
        total = sum(weights)
        return self._choose(support, [weights[i] / total for i in support], position, draw)

    def accept(self, probability: float, position: int, draw: int = 0) -> bool:
        p = min(max(probability, 0.0), 1.0)
        pairs = [(outcome, weight) for outcome, weight in ((1, p), (0, 1 - p)) if weight > 0]
        outcomes, weights = zip(*pairs, strict=True)
        return bool(self._choose(list(outcomes), list(weights), position, draw))

    def _choose(self, outcomes: list[int], weights: list[float], position: int, draw: int) -> int:
        root, key = self._root, (self._name, position, draw)
        if key in root.used:
            raise TestingError(
                f"the draw (stream {key[0]!r}, position {position}, draw {draw}) was made twice; "
                "a keyed generator would give the same number both times"
            )
        root.used.add(key)
        step = len(root.branching)
        choice = root.script[step] if step < len(root.script) else 0
        root.branching.append(len(outcomes))
        root.probability *= weights[choice]
        return outcomes[choice]


def outcomes(
    experiment: Callable[[Enumerating], T], used: frozenset[Key] = frozenset()
) -> Iterator[tuple[float, T, Enumerating]]:
    """Every outcome of `experiment` as (probability, result, the randomness that led to it).

    The experiment is run once per outcome, from the start, so it must not keep state between runs.
    """
    scripts: list[tuple[int, ...]] = [()]
    while scripts:
        script = scripts.pop()
        rng = Enumerating(script, used)
        result = experiment(rng)
        yield rng.probability, result, rng
        for step in range(len(script), len(rng.branching)):
            taken = (*script, *(0 for _ in range(step - len(script))))
            scripts.extend((*taken, choice) for choice in range(1, rng.branching[step]))
