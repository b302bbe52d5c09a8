"""How the nodes of a tree were chosen. Imports no torch: traits name it."""

from enum import StrEnum


class Draws(StrEnum):
    """How the nodes of a tree were chosen, which decides what rule can verify them exactly."""

    DETERMINISTIC = "deterministic"
    """Chosen by scores; `match` is exact and optimal."""
    CHAIN = "chain"
    """One path, each token drawn from the drafter's distribution given its prefix."""
    IID = "iid"
    """Children of a node drawn independently from one distribution."""
    WITHOUT_REPLACEMENT = "without_replacement"
    """Children of a node drawn without replacement, each with its own renormalised distribution."""
