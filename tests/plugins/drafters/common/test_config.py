"""Every key of a config is read, known to be harmless, neutral, or refused by name."""

import copy
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import attrs
import pytest

from draftwood.core.errors import CheckpointError
from draftwood.plugins.drafters.common.config import (
    HARMLESS_KEYS,
    NEUTRAL_VALUES,
    DrafterConfig,
    read_config,
)
from draftwood.plugins.drafters.dblast.config import DBlastConfig
from draftwood.plugins.drafters.dflash.config import DFlashConfig
from draftwood.plugins.drafters.eagle3.config import Eagle3Config
from draftwood.plugins.drafters.formats import dflash, eagle3

FIXTURES = Path(__file__).parents[3] / "fixtures"
ASSETS = Path(str(files("draftwood"))) / "assets" / "tiny-python"
SLIDING = {"layer_types": ["sliding_attention"] * 2, "sliding_window": 6}

Config = dict[str, Any]


def published(folder: Path) -> Config:
    return read_config(folder)[0]


def assistant() -> Config:
    data = published(FIXTURES / "zlab/dflash")
    return dflash.as_transformers(data, DFlashConfig.from_mapping(data))


def original_eagle() -> Config:
    data = published(FIXTURES / "speculators/eagle3")
    return eagle3.as_eagle(data, Eagle3Config.from_mapping(data))


def sliding(layout: str, section: str | None = None) -> Config:
    data = published(FIXTURES / layout)
    (data[section] if section else data).update(SLIDING)
    return data


READERS: dict[str, tuple[type[DrafterConfig], Config]] = {
    "zlab dflash": (DFlashConfig, sliding("zlab/dflash")),
    "zlab dflash2": (DFlashConfig, published(FIXTURES / "zlab/dflash2")),
    "jetspec": (DFlashConfig, published(FIXTURES / "heads/jetspec")),
    "speculators dflash": (DFlashConfig, sliding("speculators/dflash", "transformer_layer_config")),
    "transformers dflash": (DFlashConfig, assistant()),
    "dblast": (DBlastConfig, published(ASSETS / "dblast")),
    "speculators eagle3": (Eagle3Config, published(FIXTURES / "speculators/eagle3")),
    "eagle eagle3": (Eagle3Config, original_eagle()),
    "eagle_config": (
        Eagle3Config,
        original_eagle() | {"eagle_config": {"use_aux_hidden_state": True}},
    ),
}
"""Every layout of every reader: a config that it reads."""

NO_EFFECT = {"use_sliding_window": "layer_types decides, which these configs have"}
"""Keys that are read to be checked, and why another value gives the same drafter."""

SECTIONS = (
    "transformer_layer_config",
    "dflash_config",
    "dblast_config",
    "eagle_config",
    "rope_parameters",
)


def result(reader: type[DrafterConfig], data: Config) -> dict[str, Any]:
    fields = attrs.asdict(reader.from_mapping(data))
    return {key: value for key, value in fields.items() if key not in ("layout", "source")}


def keys(data: Config, place: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of every key that has a value, sections' own keys included."""
    for key, value in data.items():
        if value is None or (key in HARMLESS_KEYS and key != "model_type"):
            continue
        yield (*place, key)
        if key in SECTIONS:
            yield from keys(value, (*place, key))


CASES = [(name, path) for name, (_, data) in READERS.items() for path in keys(data)]
IDS = [f"{name}: {'.'.join(path)}" for name, path in CASES]


def inside(data: Config, path: tuple[str, ...]) -> Config:
    for key in path[:-1]:
        data = data[key]
    return data


def flipped(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return 2 * value + 1
    if isinstance(value, str):
        return "sliding_attention" if value == "full_attention" else "full_attention"
    if isinstance(value, list):
        return [flipped(item) for item in value]
    return {"an_unknown_key": 1}


def refused_or_changed(reader: type[DrafterConfig], data: Config, before: Config) -> bool:
    """Errors other than a CheckpointError that names the file fail the test."""
    try:
        return result(reader, data) != before
    except CheckpointError as error:
        return str(error).startswith("config.json: ")


@pytest.mark.parametrize(("name", "path"), CASES, ids=IDS)
def test_renamed_keys_are_refused(name: str, path: tuple[str, ...]) -> None:
    reader, data = READERS[name]
    result(reader, data)  # negative control
    data = copy.deepcopy(data)
    level = inside(data, path)
    level[f"{path[-1]}_x"] = level.pop(path[-1])
    with pytest.raises(CheckpointError, match=r"config\.json"):
        reader.from_mapping(data)


@pytest.mark.parametrize(("name", "path"), CASES, ids=IDS)
def test_another_value_of_a_key_is_refused_or_changes_the_config(
    name: str, path: tuple[str, ...]
) -> None:
    reader, data = READERS[name]
    before = result(reader, data)
    data = copy.deepcopy(data)
    level = inside(data, path)
    level[path[-1]] = flipped(level[path[-1]])
    if path[-1] in NO_EFFECT or (name == "transformers dflash" and path == ("model_type",)):
        return
    assert refused_or_changed(reader, data, before)


@pytest.mark.parametrize("name", READERS)
def test_harmless_keys_change_nothing_and_neutral_ones_only_at_their_value(name: str) -> None:
    reader, data = READERS[name]
    before = result(reader, data)
    harmless = dict.fromkeys(HARMLESS_KEYS - data.keys(), 7) | {"speculators_config": {}}
    harmless.pop("architectures", None)
    harmless.pop("model_type", None)
    assert result(reader, data | harmless) == before
    for key, neutral in NEUTRAL_VALUES.items():
        if key not in data and key not in data.get("transformer_layer_config", ()):
            assert result(reader, data | {key: neutral}) == before
            if key not in NO_EFFECT or reader is Eagle3Config:
                assert refused_or_changed(reader, data | {key: flipped(neutral)}, before), key


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("partial_rotary_factor", 0.25),
        ("rope_is_neox_style", False),
        ("quantization_config", {"bits": 4}),
        ("hidden_activation", "gelu"),
        ("num_experts", 8),
        ("attn_logit_softcapping", 50.0),
    ],
)
def test_inherited_keys_that_change_the_computation_are_refused_by_name(
    name: str, key: str, value: object
) -> None:
    reader, data = READERS[name]
    inner = copy.deepcopy(data)
    (inner.get("transformer_layer_config") or inner)[key] = value
    with pytest.raises(CheckpointError, match=f"{key}"):
        reader.from_mapping(inner)


@pytest.mark.parametrize("name", READERS)
def test_second_statements_about_the_rotation_must_agree(name: str) -> None:
    reader, data = READERS[name]
    yarn = {"rope_type": "yarn", "factor": 4.0}
    for change in (
        {"rope_scaling": yarn},
        {"rope_theta": 7.0, "rope_parameters": {"rope_theta": 8.0}},
    ):
        changed = copy.deepcopy(data)
        (changed.get("transformer_layer_config") or changed).update(change)
        with pytest.raises(CheckpointError, match="rope_"):
            reader.from_mapping(changed)


@pytest.mark.parametrize("key", ["partial_rotary_factor", "factor", "mrope_section"])
def test_keys_of_rope_parameters_are_checked_too(key: str) -> None:
    data = published(FIXTURES / "zlab/dflash")
    value: object = [2, 3, 3] if key == "mrope_section" else 1.0
    data["rope_parameters"][key] = value
    before = result(DFlashConfig, published(FIXTURES / "zlab/dflash"))
    assert result(DFlashConfig, data) == before
    data["rope_parameters"][key] = 0.5
    if key != "mrope_section":
        with pytest.raises(CheckpointError, match=f"rope_parameters.{key}: 0.5 is not supported"):
            DFlashConfig.from_mapping(data)


def test_taps_inside_an_eagle_config_are_refused_naming_the_option_to_set() -> None:
    data = original_eagle()
    taps = data.pop("eagle_aux_hidden_state_layer_ids")
    data["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": taps}
    with pytest.raises(CheckpointError, match=r"engines disagree .* set drafter\.taps"):
        Eagle3Config.from_mapping(data)
    data["eagle_config"] = {"use_aux_hidden_state": True, "parallel_draft_step": 1}
    assert Eagle3Config.from_mapping(data).target_layer_ids is None
    data["eagle_config"]["use_aux_hidden_state"] = False
    with pytest.raises(CheckpointError, match=r"eagle_config\.use_aux_hidden_state"):
        Eagle3Config.from_mapping(data)


def test_sliding_windows_need_layer_types() -> None:
    data = published(FIXTURES / "zlab/dflash") | {"use_sliding_window": True}
    assert DFlashConfig.from_mapping(data).windows == (None, None)
    del data["layer_types"]
    with pytest.raises(CheckpointError, match="layer_types: missing"):
        DFlashConfig.from_mapping(data)
