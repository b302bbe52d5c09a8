"""Randomness that explores every outcome with its probability, instead of drawing one."""

from collections.abc import Callable, Iterator
from typing import TypeVar

from torch import Tensor

from draftwood.core.errors import TestingError
from draftwood.core.randomness import Randomness

T = TypeVar("T")
DrawKey = tuple[str, int, int]
"""(stream, position, draw)."""


class Enumerating(Randomness):
    """Follows a script of choices, then takes the first outcome, and records the alternatives.

    A key used twice is an error: a real generator would give the same number for both draws, which
    biases the output without any other sign.

    Args:
        script: Index of the outcome of each draw, in order.
        used: Keys that earlier rounds have drawn.

    Attributes:
        probability: Of the choices made so far.
        branching: Number of possible outcomes of each draw.
    """

    def __init__(
        self, script: tuple[int, ...] = (), used: frozenset[DrawKey] = frozenset()
    ) -> None:
        self.script = script
        self.probability = 1.0
        self.branching: list[int] = []
        self.used: set[DrawKey] = set(used)
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
        possible, weights = zip(*pairs, strict=True)
        return bool(self._choose(list(possible), list(weights), position, draw))

    def _choose(self, possible: list[int], weights: list[float], position: int, draw: int) -> int:
        root, key = self._root, (self._name, position, draw)
        if key in root.used:
            raise _made_twice(key)
        root.used.add(key)
        step = len(root.branching)
        choice = root.script[step] if step < len(root.script) else 0
        root.branching.append(len(possible))
        root.probability *= weights[choice]
        return possible[choice]


class Unrepeated(Randomness):
    """Another randomness that raises TestingError where a key is used for a second draw.

    Args:
        inner: Makes the draws.
    """

    def __init__(self, inner: Randomness) -> None:
        self.inner, self._name = inner, ""
        self.used: set[DrawKey] = set()

    def stream(self, name: str) -> "Unrepeated":
        child = Unrepeated(self.inner.stream(name))
        child.used, child._name = self.used, f"{self._name}/{name}"
        return child

    def categorical(self, probs: Tensor, position: int, draw: int = 0) -> int:
        self._use((self._name, position, draw))
        return self.inner.categorical(probs, position, draw)

    def accept(self, probability: float, position: int, draw: int = 0) -> bool:
        self._use((self._name, position, draw))
        return self.inner.accept(probability, position, draw)

    def _use(self, key: DrawKey) -> None:
        if key in self.used:
            raise _made_twice(key)
        self.used.add(key)


def _made_twice(key: DrawKey) -> TestingError:
    stream, position, draw = key
    return TestingError(
        f"the draw (stream {stream!r}, position {position}, draw {draw}) was made twice; "
        "a keyed generator would give the same number both times"
    )


def outcomes(
    experiment: Callable[[Enumerating], T], used: frozenset[DrawKey] = frozenset()
) -> Iterator[tuple[float, T, Enumerating]]:
    """Run an experiment once for every outcome of its draws.

    Args:
        experiment: Starts from the beginning at each call; it must keep no state between calls.
        used: Keys that it must not draw.

    Yields:
        (probability, result, the randomness that led to it).
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
