"""YAML options of the bundled budget controllers. Imports no torch."""

from typing import Literal

from attrs import field, frozen
from attrs.validators import and_, ge, gt, le, optional

from draftwood.core.options import MAX_DEPTH, MAX_NODES


@frozen
class FixedOptions:
    """The same budget every round.

    Attributes:
        nodes: Draft nodes to verify; 0 decodes plainly.
        depth: Deepest draft node; None for the drafter's own limit.
    """

    nodes: int = field(default=32, validator=and_(ge(0), le(MAX_NODES)))
    depth: int | None = field(default=None, validator=optional(and_(ge(1), le(MAX_DEPTH))))


@frozen
class MeasuredOptions:
    """The best budget by a table of measured forwards.

    Attributes:
        max_nodes: Largest budget.
        objective: As in roofline.
        refresh: Measure even if stored measurements match.
        probe_seconds: Time limit on measuring, in seconds.
    """

    max_nodes: int = field(default=256, validator=and_(ge(1), le(MAX_NODES)))
    objective: Literal["speed", "rate"] = "speed"
    refresh: bool = False
    probe_seconds: float = field(default=5.0, validator=and_(gt(0.0), le(5.0)))


@frozen
class RooflineOptions:
    """The best budget on this machine (BASTION).

    Attributes:
        max_nodes: Largest budget.
        objective: speed maximises the tokens per second of each round; rate maximises tokens minus
            time at the pace of the request so far.
        clock: wall learns from measured times; nominal uses counted work at fixed rates, so that a
            seed determines every budget.
        refresh: Measure the machine even if a stored measurement matches.
        probe_seconds: Time limit on measuring, in seconds.
    """

    max_nodes: int = field(default=256, validator=and_(ge(1), le(MAX_NODES)))
    objective: Literal["speed", "rate"] = "speed"
    clock: Literal["wall", "nominal"] = "wall"
    refresh: bool = False
    probe_seconds: float = field(default=5.0, validator=and_(gt(0.0), le(5.0)))
