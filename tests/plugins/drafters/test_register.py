"""Registration of the bundled drafters imports no torch and reads the checkpoints' configs."""

import subprocess
import sys
from pathlib import Path

from draftwood.core.registry.plugin import DrafterTraits, Plugin
from draftwood.plugins.drafters.register import draftwood_register_drafters

FIXTURES = Path(__file__).parents[2] / "fixtures"


def plugin(name: str) -> Plugin:
    return {record.name: record for record in draftwood_register_drafters()}[name]


def traits(name: str, **options: object) -> DrafterTraits:
    record = plugin(name)
    declared = record.traits(record.options(**options))
    assert isinstance(declared, DrafterTraits)
    return declared


def test_traits_come_from_config_json_without_torch() -> None:
    code = (
        "import sys, draftwood.plugins.drafters.register as r\n"
        "for p in r.draftwood_register_drafters():\n"
        f"    for name, at in (('dflash', 'zlab/dflash'), ('eagle3', 'speculators/eagle3')):\n"
        f"        if p.name == name: p.traits(p.options(r'{FIXTURES}/' + at))\n"
        "assert not {'torch', 'transformers', 'safetensors'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_form_of_dflash_depends_on_the_checkpoints_generation() -> None:
    assert traits("dflash", checkpoint=FIXTURES / "zlab/dflash").form == "factorized"
    assert traits("dflash", checkpoint=FIXTURES / "zlab/dflash2").form == "markov"


def test_eagle3_traits_name_taps_and_a_forward_pass_per_level() -> None:
    actual = traits("eagle3", checkpoint=FIXTURES / "speculators/eagle3", max_depth=5)
    assert actual == DrafterTraits(
        form="autoregressive",
        max_depth=5,
        pass_per_level=True,
        taps=(1, 2, 4),
        target_hidden_size=64,
        vocab_size=96,
    )
    assert traits("eagle3", checkpoint="some/model", taps=(0, 1, 2)).taps == (0, 1, 2)
    assert traits("eagle3", checkpoint="some/model").taps is None


def test_draft_model_traits_name_a_forward_pass_per_level_and_no_taps() -> None:
    actual = traits("draft_model", model="some/model")
    assert (actual.form, actual.pass_per_level, actual.taps) == ("autoregressive", True, ())
