"""`check` looks at the target's config.json as it does at a drafter's, without its weights."""

import json

import pytest

from draftwood.core.build import load_pipeline
from draftwood.core.config.compose import RECURRENT, check_composition
from draftwood.core.config.pipeline import TargetConfig, load_config, target_config
from draftwood.core.errors import CompositionError, ConfigError

LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2}


@pytest.fixture
def problems(tmp_path):
    """The problems of a pipeline whose target's config.json has this content."""

    def problems(content: object) -> list[str]:
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / "config.json").write_text(text)
        try:
            check_composition(load_config({"target": {"model": tmp_path}}))
        except CompositionError as error:
            return [f"{problem.path}: {problem.message}" for problem in error.problems]
        return []

    return problems


@pytest.mark.covers("unclear-refusal")
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "mamba"}, "mamba keeps a recurrent state"),
        ({"layer_types": ["full_attention", "conv"]}, "it has layers of kind conv; only"),
        ({"text_config": {"layer_types": ["linear_attention"]}}, "layers of kind linear_attention"),
        ({"is_encoder_decoder": True}, "it is an encoder-decoder"),
        ({"architectures": ["BertForMaskedLM"]}, "BertForMaskedLM is no causal language model"),
    ],
)
def test_model_that_cannot_be_a_target_is_named_without_its_weights(problems, values, message):
    (found,) = problems({**LLAMA, **values})
    assert found.startswith("target.model: ")
    assert message in found


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"architectures": ["LlamaModel"]},
        {"architectures": ["Gemma3ForConditionalGeneration"]},
        {"architectures": None, "layer_types": None},
        {"layer_types": ["full_attention", "sliding_attention"]},
        {"text_config": None},
    ],
)
def test_model_that_may_be_a_target_is_accepted(problems, values):
    assert problems({**LLAMA, **values}) == []


@pytest.mark.covers("mutated-input")
@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "not JSON"), ("[1]", "a JSON object is expected"), ("[" * 100_000, "not JSON")],
)
def test_unreadable_config_of_a_target_is_one_problem(problems, content, message):
    (found,) = problems(content)
    assert message in found


@pytest.mark.covers("damaged-checkpoint")
def test_folder_without_a_config_is_a_problem(tmp_path):
    with pytest.raises(CompositionError, match=r"has no config.json: it is not a model's folder"):
        check_composition(load_config({"target": {"model": tmp_path}}))


def test_recurrent_types_are_types_of_transformers():
    transformers = pytest.importorskip("transformers")
    known = set(transformers.CONFIG_MAPPING)
    assert len(RECURRENT & known) >= len(RECURRENT) - 3  # some come and go with releases


def test_load_pipeline_takes_the_name_of_a_target(tmp_path):
    by_name = load_pipeline("ngram", target="builtin")
    assert by_name.generate("def f(", max_new_tokens=4).text == (
        load_pipeline("ngram").generate("def f(", max_new_tokens=4).text
    )
    document = load_config({"target": {"model": "some/model", "revision": "v1"}})
    assert load_pipeline(document, target="builtin").target.name == by_name.target.name
    assert target_config("some/model") == TargetConfig("some/model")
    with pytest.raises(ConfigError, match=r"target: model: no such file or folder"):
        load_pipeline("ngram", target=tmp_path / "nothing")
