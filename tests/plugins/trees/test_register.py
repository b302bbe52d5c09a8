"""Registration of the bundled tree policies: torch-free, and true."""

import subprocess
import sys
from importlib import import_module

from draftwood.core.interfaces.tree import TreePolicy
from draftwood.core.plugin import Draws, TreeTraits
from draftwood.plugins.trees.register import draftwood_register_trees


def test_registration_imports_no_torch() -> None:
    code = (
        "import sys, draftwood.plugins.trees.register as r; r.draftwood_register_trees();"
        "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_every_record_builds_a_policy_with_its_default_options() -> None:
    records = list(draftwood_register_trees())
    assert [record.name for record in records] == ["best_first", "chain", "static"]
    for record in records:
        module, _, name = record.factory.partition(":")
        options = record.options()
        assert isinstance(getattr(import_module(module), name)(options), TreePolicy)
        assert record.traits(options) == TreeTraits(Draws.DETERMINISTIC)
