"""YAML options of the bundled budget controllers. Imports no torch."""

from typing import Literal

from attrs import field, frozen
from attrs.validators import and_, ge, gt, le, optional


@frozen
class FixedOptions:
    """The same budget every round.

    nodes: draft nodes to verify; 0 decodes plainly. depth: deepest of them, None for as deep as
    the drafter goes.
    """

    nodes: int = field(default=32, validator=ge(0))
    depth: int | None = field(default=None, validator=optional(ge(1)))


@frozen
class MeasuredOptions:
    """The budget that pays by a table of measured forwards.

    max_nodes: never more than this. objective: as in roofline. refresh: measure even if stored
    measurements fit. probe_seconds: most time that measuring may take.
    """

    max_nodes: int = field(default=256, validator=ge(1))
    objective: Literal["speed", "rate"] = "speed"
    refresh: bool = False
    probe_seconds: float = field(default=5.0, validator=and_(gt(0.0), le(5.0)))


@frozen
class RooflineOptions:
    """The budget that pays on this machine (BASTION).

    max_nodes: never more than this. objective: speed maximises the tokens per second of each
    round; rate maximises tokens minus time at the pace reached so far. clock: wall learns from
    measured times; nominal uses counted work at fixed rates, so that a seed fixes every budget.
    refresh: measure the machine even if a stored measurement fits. probe_seconds: most time that
    measuring may take.
    """

    max_nodes: int = field(default=256, validator=ge(1))
    objective: Literal["speed", "rate"] = "speed"
    clock: Literal["wall", "nominal"] = "wall"
    refresh: bool = False
    probe_seconds: float = field(default=5.0, validator=and_(gt(0.0), le(5.0)))
