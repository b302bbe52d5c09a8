"""The exported JSON Schema says what the reader does."""

import jsonschema
import pytest
import yaml

from draftwood.core.config.pipeline import builtin_pipelines, load_config
from draftwood.core.config.schema import pipeline_schema
from draftwood.core.errors import ConfigError

BASE = {"target": {"model": "builtin"}}


@pytest.fixture
def validator(registry):
    schema = pipeline_schema(registry)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize(
    ("parts", "valid"),
    [
        ({}, True),
        ({"drafter": {"use": "ngram", "max_ngram": 5}}, True),
        ({"drafter": None}, True),
        ({"drafter": {"use": "ngrm"}}, False),
        ({"drafter": {"use": "ngram", "max_nodes": 5}}, False),
        ({"tree": {"use": "best_first", "max_nodes": 5}}, True),
        ({"tree": {"use": "best_first", "max_nodes": 0}}, False),
        ({"tree": {"use": "best_first", "max_nodes": "5"}}, False),
        ({"tree": {"use": "best_first", "max_nodes": 5.5}}, False),
        ({"tree": {"use": "best_first", "temperature": None}}, True),
        ({"tree": {"use": "best_first", "temperature": 1}}, True),
        ({"tree": {"use": "best_first", "exact": "off"}}, False),
        ({"tree": {"use": "best_first", "mode": "exact"}}, True),
        ({"tree": {"use": "best_first", "mode": "slow"}}, False),
        ({"tree": {"use": "best_first", "count": "auto"}}, True),
        ({"tree": {"use": "best_first", "count": "none"}}, False),
        ({"tree": {"use": "best_first", "inner": {"depth": 2}}}, True),
        ({"tree": {"use": "best_first", "inner": {"dept": 2}}}, False),
        ({"tree": {"use": "best_first", "paths": [[0], [0, 1]]}}, True),
        ({"tree": {"use": "best_first", "paths": [0]}}, False),
        ({"tree": {"use": "best_first", "pair": [1, 2.5]}}, True),
        ({"tree": {"use": "best_first", "pair": [1]}}, False),
        ({"generation": {"temperature": 0.5, "top_p": 1}}, True),
        ({"generation": {"top_p": 0}}, False),
        ({"generation": {"top_p": 1.5}}, False),
        ({"generation": {"temprature": 0.5}}, False),
        ({"runtime": {"threads": 2, "dtype": "bfloat16"}}, True),
        ({"runtime": {"dtype": "int8"}}, False),
        ({"controler": {}}, False),
    ],
)
def test_schema_and_reader_accept_the_same(registry, validator, parts, valid):
    document = {**BASE, **parts}
    assert validator.is_valid(document) is valid
    try:
        load_config(document, registry=registry)
        read = True
    except ConfigError:
        read = False
    assert read is valid


def test_the_builtin_pipelines_follow_the_schema_of_the_bundled_plugins():
    validator = jsonschema.Draft202012Validator(pipeline_schema())
    for name, path in builtin_pipelines().items():
        document = yaml.safe_load(path.read_text())
        assert [error.message for error in validator.iter_errors(document)] == [], name


def test_a_third_partys_plugin_is_in_the_schema(registry):
    properties = pipeline_schema(registry)["properties"]
    assert properties["drafter"]["properties"]["use"]["enum"] == ["block", "ngram"]
