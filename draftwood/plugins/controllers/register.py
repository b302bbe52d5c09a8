"""The bundled budget controllers. Imports no torch."""

from collections.abc import Iterable

from draftwood.core.registry.hookspecs import hookimpl
from draftwood.core.registry.plugin import ControllerTraits, Plugin
from draftwood.plugins.controllers.options import FixedOptions, MeasuredOptions, RooflineOptions

_PACKAGE = "draftwood.plugins.controllers"


def _roofline_traits(options: RooflineOptions) -> ControllerTraits:
    return ControllerTraits(timed=options.clock == "wall")


@hookimpl
def draftwood_register_controllers() -> Iterable[Plugin]:
    return [
        Plugin(
            "fixed",
            "the same number of nodes every round",
            FixedOptions,
            f"{_PACKAGE}.fixed:Fixed",
            lambda options: ControllerTraits(timed=False),
        ),
        Plugin(
            "measured",
            "the roofline's decision on a table of measured forwards",
            MeasuredOptions,
            f"{_PACKAGE}.measured:Measured",
            lambda options: ControllerTraits(timed=True),
        ),
        Plugin(
            "roofline",
            "the budget that pays on this machine, or none (BASTION)",
            RooflineOptions,
            f"{_PACKAGE}.roofline:Roofline",
            _roofline_traits,
        ),
    ]
