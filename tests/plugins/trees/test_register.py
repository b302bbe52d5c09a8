"""Registration of the bundled tree policies: torch-free, and true."""

import subprocess
import sys
from importlib import import_module

from draftwood.core.draws import Draws
from draftwood.core.interfaces.tree import TreePolicy
from draftwood.core.registry.plugin import TreeTraits
from draftwood.plugins.trees.register import draftwood_register_trees


def test_registration_imports_no_torch() -> None:
    code = (
        "import sys, draftwood.plugins.trees.register as r; r.draftwood_register_trees();"
        "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_every_record_builds_a_policy_with_its_default_options() -> None:
    for record in draftwood_register_trees():
        module, _, name = record.factory.partition(":")
        policy = getattr(import_module(module), name)(record.options())
        assert isinstance(policy, TreePolicy)


def test_scored_trees_are_deterministic_and_grow_over_any_distribution() -> None:
    records = {record.name: record for record in draftwood_register_trees()}
    for name in ("best_first", "chain", "dynamic", "static"):
        record = records[name]
        assert record.traits(record.options()) == TreeTraits(Draws.DETERMINISTIC)
