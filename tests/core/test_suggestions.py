"""What is suggested for words that are not understood."""

import attrs
import pytest

from draftwood.core.config.pipeline import RuntimeConfig, TargetConfig, load_config
from draftwood.core.errors import ConfigError, RequestError
from draftwood.core.options import GenerationOptions
from draftwood.core.registry.loader import load_plugins
from draftwood.core.registry.plugin import Kind
from draftwood.core.suggestions import KEYS, SECTIONS, VALUES, WITHOUT_KEY, did_you_mean

REGISTRY = load_plugins(third_parties=False)
SECTION_CLASSES = {
    "target": TargetConfig,
    "generation": GenerationOptions,
    "runtime": RuntimeConfig,
}
OPTIONS = {
    name: {attribute.name for attribute in attrs.fields(cls)}
    for name, cls in SECTION_CLASSES.items()
}
PLUGIN_OPTIONS = {
    attribute.name
    for kind in Kind
    for name in REGISTRY.names(kind)
    for attribute in attrs.fields(REGISTRY.get(kind, name).plugin.options)
}


def messages(document: dict[str, object]) -> list[str]:
    with pytest.raises(ConfigError) as error:
        load_config({"target": {"model": "some/model"}, **document}, registry=REGISTRY)
    return [f"{problem.path}: {problem.message}" for problem in error.value.problems]


@pytest.mark.covers("unclear-refusal")
@pytest.mark.parametrize(
    ("section", "key", "meant"),
    [
        ("generation", "stop", "stop_strings"),
        ("generation", "max_tokens", "max_new_tokens"),
        ("generation", "max_length", "max_new_tokens"),
        ("generation", "top-k", "top_k"),
        ("generation", "TOP_P", "top_p"),
        ("generation", "repeat_penalty", "repetition_penalty"),
        ("generation", "stop_token_ids", "eos_token_id"),
        ("runtime", "torch_dtype", "dtype"),
        ("runtime", "attn_implementation", "attention"),
        ("runtime", "device_map", "device"),
        ("target", "name_or_path", "model"),
        ("target", "path", "model"),
    ],
)
def test_key_of_another_library_names_the_key_here(section, key, meant):
    document = {section: {key: 1}}
    if section == "target":
        document["target"]["model"] = "some/model"
    assert f"{section}.{key}: unknown key {key!r}; did you mean {meant!r}?" in messages(document)


@pytest.mark.covers("unclear-refusal")
@pytest.mark.parametrize(
    ("section", "value", "meant"),
    [
        ({"runtime": {"device": "gpu"}}, "'gpu'", "cuda"),
        ({"runtime": {"device": "gpu:1"}}, "'gpu:1'", "cuda"),
        ({"runtime": {"dtype": "fp16"}}, "'fp16'", "float16"),
        ({"runtime": {"dtype": "bf16"}}, "'bf16'", "bfloat16"),
        ({"runtime": {"graphs": True}}, "true", "on"),
        ({"runtime": {"attention": "flash_attention_2"}}, "'flash_attention_2'", "sdpa"),
        ({"drafter": {"use": "prompt_lookup"}}, "'prompt_lookup'", "ngram"),
        ({"verifier": {"use": "rejection"}}, "'rejection'", "ratio"),
        ({"tree": {"use": "best-first"}}, "'best-first'", "best_first"),
    ],
)
def test_value_of_another_library_names_the_value_here(section, value, meant):
    (message,) = messages(section)
    assert value in message
    assert message.endswith(f"did you mean {meant!r}?")


@pytest.mark.covers("unclear-refusal")
def test_option_of_another_section_names_its_section():
    assert messages({"tree": {"use": "chain", "temperature": 1}}) == [
        "tree.temperature: unknown key 'temperature' for chain; 'temperature' is an option of "
        "'generation'"
    ]
    assert messages({"device": "cpu"}) == [
        "device: unknown key 'device'; 'device' is an option of 'runtime'"
    ]


@pytest.mark.covers("unclear-refusal")
def test_key_without_a_counterpart_says_what_to_do():
    (message,) = messages({"generation": {"num_beams": 4}})
    assert message.startswith("generation.num_beams: unknown key 'num_beams': there is no beam")


@pytest.mark.covers("unclear-refusal")
def test_type_in_place_of_use_is_named():
    (message,) = messages({"tree": {"type": "chain"}})
    assert (
        message == "tree.use: `use` must name a tree, got no `use`; did you mean `use` by 'type'?"
    )


@pytest.mark.covers("unclear-refusal")
def test_unknown_keys_and_refused_values_of_a_section_are_reported_together():
    found = messages({"generation": {"stop": "x", "temperature": -1, "top_k": 0, "top_p": "x"}})
    assert [message.partition(":")[0] for message in found] == [
        "generation.stop",
        "generation.top_p",
        "generation.temperature",
        "generation.top_k",
    ]


@pytest.mark.covers("unclear-refusal")
def test_python_options_get_the_same_suggestions():
    with pytest.raises(RequestError, match=r"'stop'; did you mean 'stop_strings'\?"):
        GenerationOptions().override({"stop": "x"})
    with pytest.raises(RequestError, match=r"choices: bad_words_ids, "):
        GenerationOptions().override({"qqq": 1})


def test_sections_table_has_every_option():
    for section, names in SECTIONS.items():
        assert set(names) == OPTIONS[section]


def test_suggested_keys_and_values_exist():
    for names in KEYS.values():
        for name in names:
            section, _, option = name.rpartition(".")
            assert name == "use" or option in (OPTIONS.get(section) or PLUGIN_OPTIONS)
    plugins = {name for kind in Kind for name in REGISTRY.names(kind)}
    values = {"sdpa", "off", "on", "cuda", "tensor", "float16", "float32", "float64", "bfloat16"}
    assert set(VALUES.values()) <= plugins | values
    assert not set(WITHOUT_KEY) & set(KEYS)


def test_very_long_word_is_compared_in_bounded_time():
    assert did_you_mean("x" * 1_000_000, ["max_nodes"]) == ""
