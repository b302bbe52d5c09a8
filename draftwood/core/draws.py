"""How the nodes of a tree are chosen. Torch-free, since plugin records name it."""

from enum import StrEnum


class Draws(StrEnum):
    """How the nodes of a tree are chosen; this decides which rule can verify them exactly."""

    DETERMINISTIC = "deterministic"
    """Chosen by scores; `match` is exact and optimal."""
    CHAIN = "chain"
    """One path, each token drawn from the drafter's distribution given its prefix."""
    IID = "iid"
    """Children of a node drawn independently from one distribution."""
    WITHOUT_REPLACEMENT = "without_replacement"
    """Children of a node drawn without replacement, each from its own renormalised distribution."""
