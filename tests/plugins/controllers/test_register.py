"""Registration of the bundled controllers."""

import subprocess
import sys
from importlib import import_module

from draftwood.core.interfaces import BudgetController
from draftwood.core.registry.plugin import ControllerTraits
from draftwood.plugins.controllers.options import RooflineOptions
from draftwood.plugins.controllers.register import draftwood_register_controllers


def test_registration_imports_no_torch() -> None:
    code = (
        "import sys, draftwood.plugins.controllers.register as r;"
        "r.draftwood_register_controllers();"
        "assert not {'torch', 'transformers', 'numpy', 'scipy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_scipy_is_imported_only_to_fit() -> None:
    code = (
        "import sys, draftwood.plugins.controllers.roofline;"
        "assert 'scipy.optimize' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_every_plugin_builds_with_its_default_options() -> None:
    records = list(draftwood_register_controllers())
    assert [record.name for record in records] == ["fixed", "measured", "roofline"]
    for record in records:
        module, _, name = record.factory.partition(":")
        options = record.options()
        assert isinstance(getattr(import_module(module), name)(options), BudgetController)


def test_only_the_wall_clock_makes_budgets_depend_on_time() -> None:
    fixed, measured, roofline = draftwood_register_controllers()
    assert measured.traits(measured.options()) == ControllerTraits(timed=True)
    assert fixed.traits(fixed.options()) == ControllerTraits(timed=False)
    assert roofline.traits(RooflineOptions()) == ControllerTraits(timed=True)
    assert roofline.traits(RooflineOptions(clock="nominal")) == ControllerTraits(timed=False)
