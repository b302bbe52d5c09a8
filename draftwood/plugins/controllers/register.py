"""The bundled budget controllers. Imports no torch."""

from collections.abc import Iterable

from draftwood.core.registry.hookspecs import hookimpl
from draftwood.core.registry.plugin import ControllerTraits, Plugin
from draftwood.plugins.controllers.options import FixedOptions, MeasuredOptions, RooflineOptions


def _fixed(options: FixedOptions) -> ControllerTraits:
    return ControllerTraits(timed=False)


def _measured(options: MeasuredOptions) -> ControllerTraits:
    return ControllerTraits(timed=True)


def _roofline(options: RooflineOptions) -> ControllerTraits:
    return ControllerTraits(timed=options.clock == "wall")


@hookimpl
def draftwood_register_controllers() -> Iterable[Plugin]:
    home = "draftwood.plugins.controllers"
    return [
        Plugin(
            "fixed",
            "the same number of nodes every round",
            FixedOptions,
            f"{home}.fixed:Fixed",
            _fixed,
        ),
        Plugin(
            "measured",
            "the roofline's decision on a table of measured forwards",
            MeasuredOptions,
            f"{home}.measured:Measured",
            _measured,
        ),
        Plugin(
            "roofline",
            "the budget that pays on this machine, or none (BASTION)",
            RooflineOptions,
            f"{home}.roofline:Roofline",
            _roofline,
        ),
    ]
