"""Reading pipelines: values, merging, and a located problem for everything that is wrong."""

from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwood.core.config.compose import check_composition
from draftwood.core.config.document import read_text
from draftwood.core.config.pipeline import (
    GenerationOptions,
    PipelineConfig,
    RuntimeConfig,
    builtin_pipelines,
    load_config,
    load_options,
)
from draftwood.core.errors import ConfigError
from draftwood.core.registry.registry import Registry
from draftwood.core.renames import OPTION_VALUES

GOOD = """\
target: {model: builtin}
drafter: {use: block, checkpoint: some/drafter}
tree:
  use: best_first
  max_nodes: 32
controller: {use: fixed}
verifier: {use: match}
generation: {temperature: 0.5}
"""


@pytest.fixture
def load(tmp_path, registry, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def load(text, settings=(), **named) -> PipelineConfig:
        Path("pipeline.yaml").write_text(dedent(text))
        return load_config("pipeline.yaml", settings, registry=registry, **named)

    return load


@pytest.fixture
def problems(load):
    """The problems of a document, one string each."""

    def problems(text, settings=()) -> list[str]:
        with pytest.raises(ConfigError) as error:
            load(text, settings)
        return [str(problem) for problem in error.value.problems]

    return problems


def tree(options: str) -> str:
    return f"target: {{model: builtin}}\ntree: {{use: best_first, {options}}}\n"


def test_valid_document_becomes_one_frozen_value(load):
    config = load(GOOD)
    assert config == load(GOOD)
    assert config.target.model == "builtin"
    assert (config.tree.use, config.tree.options.max_nodes) == ("best_first", 32)
    assert config.drafter.options.checkpoint == "some/drafter"
    assert config.generation == GenerationOptions(temperature=0.5)
    assert config.runtime == RuntimeConfig()
    assert hash(config.tree.options) == hash(load(GOOD).tree.options)


@pytest.mark.covers("configuration")
def test_all_problems_are_reported_in_document_order(problems):
    found = problems(
        """\
        target: {model: builtin, revison: main}
        drafter: {use: ngrm}
        tree:
          use: best_first
          max_nodes: 3.7
          exact: off
        controler: {use: fixed}
        generation: {temperature: -1, top_k: 0}
        """
    )
    assert [line.splitlines()[0] for line in found] == [
        "pipeline.yaml:1:26: target.revison: unknown key 'revison'; did you mean 'revision'?",
        "pipeline.yaml:2:16: drafter.use: unknown drafter 'ngrm'; did you mean 'ngram'?",
        "pipeline.yaml:5:14: tree.max_nodes: expected a whole number, got 3.7",
        "pipeline.yaml:6:10: tree.exact: expected true or false, got 'off'",
        "pipeline.yaml:7:1: controler: unknown key 'controler'; did you mean 'controller'?",
        "pipeline.yaml:8:27: generation.temperature: 'temperature' must be >= 0.0: -1.0",
        "pipeline.yaml:8:38: generation.top_k: 'top_k' must be >= 1: 0",
    ]


def test_unknown_plugin_shows_choices_and_load_failures(problems):
    (found,) = problems("target: {model: builtin}\ndrafter: {use: ngrm}\n")
    assert found.splitlines()[1:] == [
        "  installed: block, ngram",
        "  'foo-spec 0.2' failed to load (No module named 'flash_attn'); "
        "see `draftwood plugins list`",
    ]


@pytest.mark.covers("configuration")
@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        ("temperature: 1e-5", "temperature", 1e-5),
        ("temperature: 1", "temperature", 1.0),
        ("temperature: .5", "temperature", 0.5),
        ("temperature: +1.5E+2", "temperature", 150.0),
        ("temperature: null", "temperature", None),
        ("temperature:", "temperature", None),
        ("exact: true", "exact", True),
        ("count: auto", "count", "auto"),
        ("count: 3", "count", 3),
        ("form: search", "form", "search"),
        ("paths: [[0], [0, 1]]", "paths", ((0,), (0, 1))),
        ("pair: [2, 3]", "pair", (2, 3.0)),
    ],
)
def test_scalars_follow_yaml_1_2(load, options, field, value):
    found = getattr(load(tree(options)).tree.options, field)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("exact: yes", "tree.exact: expected true or false, got 'yes'"),
        ("exact: on", "tree.exact: expected true or false, got 'on'"),
        ("exact: 1", "tree.exact: expected true or false, got 1"),
        ("exact: True", "tree.exact: expected true or false, got 'True'"),
        ("max_nodes: true", "tree.max_nodes: expected a whole number, got true"),
        ("max_nodes: '8'", "tree.max_nodes: expected a whole number, got '8'"),
        ("max_nodes: 1e2", "tree.max_nodes: expected a whole number, got 100.0"),
        ("max_nodes: 010", "tree.max_nodes: expected a whole number, got '010'"),
        ("max_nodes: [8]", "tree.max_nodes: expected a whole number, got a list"),
        ("max_nodes:", "tree.max_nodes: expected a whole number, got nothing"),
        ("max_nodes: 0", "tree.max_nodes: 'max_nodes' must be >= 1: 0"),
        ("temperature: .nan", "tree.temperature: expected a number or null, got nan"),
        ("temperature: hot", "tree.temperature: expected a number or null, got 'hot'"),
        ("mode: fats", "tree.mode: 'fats' is none of the choices; did you mean 'fast'?"),
        ("form: 3", "tree.form: 3 is none of the choices"),
        ("paths: [[0], [a]]", "tree.paths[1][0]: expected a whole number, got 'a'"),
        ("paths: 3", "tree.paths: expected a list, each item a list"),
        ("pair: [1]", "tree.pair: expected a list of 2: a whole number, a number, got 1 items"),
        ("count: none", "tree.count: expected 'auto' or a whole number, got 'none'"),
        ("inner: {dept: 2}", "tree.inner.dept: unknown key 'dept'; did you mean 'depth'?"),
        ("inner: {depth: 0}", "tree.inner.depth: 'depth' must be >= 1: 0"),
        ("inner: 3", "tree.inner: expected a mapping, got 3"),
        ("even: 3", "tree.even: even must be even: 3"),
        ("log: 3", "tree.log: expected a path or null, got 3"),
        ("max_node: 3", "unknown key 'max_node' for best_first; did you mean 'max_nodes'?"),
        ("zzz: 3", "tree.zzz: unknown key 'zzz' for best_first"),
    ],
)
def test_wrong_value_is_one_located_problem(problems, options, message):
    (found,) = problems(tree(options))
    assert found.startswith("pipeline.yaml:2:")
    assert message in found


def test_two_refusing_validators_give_two_problems(problems):
    found = problems(tree("max_nodes: 0, even: 3"))
    assert [line.partition(": ")[0] for line in found] == [
        "pipeline.yaml:2:36",
        "pipeline.yaml:2:45",
    ]


def test_contradicting_options_are_a_problem_of_their_section(problems):
    (found,) = problems(
        "target: {model: builtin}\ndrafter: {use: ngram, max_ngram: 2, min_ngram: 3}\n"
    )
    assert found == "pipeline.yaml:2:10: drafter: min_ngram 3 is above max_ngram 2"


def test_missing_required_option_is_named(problems):
    (found,) = problems("target: {model: builtin}\ndrafter: {use: block}\n")
    assert found == "pipeline.yaml:2:10: drafter.checkpoint: is required for block"


@pytest.mark.covers("configuration")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "target: {model: a, model: b}",
            "1:20: duplicate key 'model'; first at pipeline.yaml:1:10",
        ),
        ("target: {model: [}", "1:18: is not YAML"),
        ("a: b: c", "1:5: is not YAML"),
        ("- target", "expected a mapping with target, drafter"),
        ("3: x", "1:1: a key must be a word"),
        ("? [a]\n: b", "1:3: a key must be a word"),
        ("target: !!python/object:os.system {}", "cannot be used here"),
        ("target: !!int five", "cannot be used here"),
        ("a: &a {b: *a}", "an alias refers to a value that contains it"),
        ("target: {model: a}\n---\ntarget: {model: b}", "is not YAML"),
        ("", "target: is required"),
        ("target:", "target: is required"),
        ("target: builtin", "target: expected a mapping, got 'builtin'"),
        ("tree: best_first", "tree: expected a mapping with `use`, got 'best_first'"),
        ("tree: {max_nodes: 3}", "tree.use: `use` must name a tree, got no `use`"),
        ("tree: {use: 3}", "tree.use: `use` must name a tree, got 3"),
        ("target: {model: ''}", "target.model: no such file or folder"),
    ],
)
def test_malformed_document_is_a_located_problem(problems, text, message):
    assert any(message in problem for problem in problems(text))


def test_file_that_is_not_utf8_is_a_problem(tmp_path, registry):
    path = tmp_path / "pipeline.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not UTF-8"):
        load_config(path, registry=registry)


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused_with_a_place(text):
    try:
        read_text(text, "any.yaml", Path())
        places = []
    except ConfigError as error:
        places = [problem.where for problem in error.problems]
    assert all(place.startswith("any.yaml") for place in places)


@pytest.mark.covers("configuration")
def test_relative_paths_start_from_the_file_that_contains_them(tmp_path, registry, monkeypatch):
    (tmp_path / "there" / "models" / "drafter").mkdir(parents=True)
    (tmp_path / "models" / "drafter").mkdir(parents=True)
    text = "target: {model: ./models}\ndrafter: {use: block, checkpoint: models/drafter}\n"
    (tmp_path / "there" / "a.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    config = load_config("there/a.yaml", registry=registry)
    assert config.target.model == tmp_path / "there" / "models"
    assert config.drafter.options.checkpoint == tmp_path / "there" / "models" / "drafter"
    changed = load_config("there/a.yaml", ["target.model=./models"], registry=registry)
    assert changed.target.model == tmp_path / "models"


def test_paths_must_exist_and_hub_names_need_not(problems, load):
    (found,) = problems("target: {model: ./nowhere}\n")
    assert "target.model: no such file or folder: /" in found
    assert load("target: {model: Qwen/Qwen3-8B}\n").target.model == "Qwen/Qwen3-8B"


def test_builtin_stays_a_name_beside_a_folder_of_that_name(load, tmp_path):
    (tmp_path / "builtin").mkdir()
    assert load("target: {model: builtin}\n").target.model == "builtin"


@pytest.mark.parametrize(
    "settings",
    [
        ["tree.max_nodes=8", "generation.temperature=1e-3"],
        ["generation.temperature=1e-3", "tree.max_nodes=999", "tree.max_nodes=8"],
    ],
)
def test_settings_replace_single_options(load, settings):
    config = load(GOOD, settings)
    assert config.tree.options.max_nodes == 8
    assert config.generation.temperature == 1e-3
    assert config.drafter == load(GOOD).drafter


@pytest.mark.parametrize("order", [1, -1])
def test_setting_use_drops_the_old_options_in_any_order(load, order):
    settings = ["tree.use=sampled", "tree.nodes=5"][::order]
    assert load(GOOD, settings).tree.options.nodes == 5


def test_setting_use_to_the_same_plugin_keeps_its_options(load):
    assert load(GOOD, ["tree.use=best_first"]) == load(GOOD)


def test_settings_are_validated_after_all_apply(load, problems):
    text = "target: {model: builtin}\ndrafter: {use: ngram, max_ngram: 2}\n"
    both = ["drafter.min_ngram=4", "drafter.max_ngram=5"]
    assert load(text, both).drafter.options.min_ngram == 4
    assert problems(text, both[:1])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("tree.max_nodes", "--set: 'tree.max_nodes' is not section.option=value"),
        ("=3", "--set: '=3' is not section.option=value"),
        ("tree..x=3", "is not section.option=value"),
        ("tree.max_node=3", "--set tree.max_node: tree.max_node: unknown key 'max_node'"),
        ("tree.max_nodes=[", "--set tree.max_nodes:1:2: is not YAML"),
        ("tree.max_nodes=x", "--set tree.max_nodes: tree.max_nodes: expected a whole number"),
        ("extends=plain", "--set extends: extends: can only be written in the file"),
    ],
)
def test_wrong_setting_is_located_at_its_set_option(problems, setting, message):
    (found,) = problems(GOOD, [setting])
    assert message in found


def test_null_and_empty_settings_remove_a_part(load):
    assert load(GOOD, ["drafter=null", "tree="]).drafter is None


def test_extends_merges_into_the_extended_file(load, tmp_path):
    (tmp_path / "base.yaml").write_text(GOOD)
    config = load("extends: ./base.yaml\ntree: {max_nodes: 8}\ngeneration: {top_k: 5}\n")
    assert config.tree.options.max_nodes == 8
    assert config.generation == GenerationOptions(temperature=0.5, top_k=5)
    other = load("extends: ./base.yaml\ntree: {use: sampled}\n")
    assert other.tree.use == "sampled"


def test_problem_in_an_extended_file_is_located_there(problems, tmp_path):
    (tmp_path / "base.yaml").write_text(GOOD.replace("32", "many"))
    (found,) = problems("extends: base.yaml\n")
    assert "base.yaml:5:14: tree.max_nodes" in found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("extends: pipeline.yaml", "extends itself"),
        ("extends: nowhere.yaml", "pipeline.yaml:1:10: extends: 'nowhere.yaml' is neither"),
        ("extends: plane", "did you mean 'plain'?"),
        ("extends: [plain]", "expected a builtin name or a path, got a list"),
    ],
)
def test_extends_of_a_missing_or_cyclic_file_is_a_problem(problems, text, message):
    (found,) = problems(text)
    assert message in found


def test_mapping_reads_like_the_same_file(load, registry):
    config = load_config(
        {
            "target": {"model": "builtin"},
            "drafter": {"use": "block", "checkpoint": "some/drafter"},
            "tree": {"use": "best_first", "max_nodes": 32},
            "controller": {"use": "fixed"},
            "verifier": {"use": "match"},
            "generation": {"temperature": 0.5},
        },
        registry=registry,
    )
    assert config.tree.options == load(GOOD).tree.options
    assert config.source == "<mapping>"


def test_mapping_with_a_non_yaml_value_is_a_problem(registry):
    with pytest.raises(ConfigError, match=r"<mapping>: tree.max_nodes: a set cannot be a setting"):
        load_config({"tree": {"use": "best_first", "max_nodes": {1}}}, registry=registry)


def test_target_is_required_unless_the_caller_brings_one(load, problems):
    text = "verifier: {use: match}\n"
    assert load(text, target_given=True).target is None
    (found,) = problems(text)
    assert "target: is required" in found


def test_unknown_pipeline_name_lists_the_builtin_ones(registry):
    with pytest.raises(ConfigError) as error:
        load_config("bastin", registry=registry)
    assert "'bastin' is neither a builtin pipeline nor a file; did you mean 'bastion'?" in str(
        error.value
    )
    assert "builtin: bastion, bastion-dblast, bastion-eagle3, dblast" in str(error.value)


def test_builtin_pipelines_are_listed_in_natural_order():
    assert list(builtin_pipelines()) == [
        "bastion",
        "bastion-dblast",
        "bastion-eagle3",
        "dblast",
        "dblast-mixture",
        "dflash",
        "dflash-ratio",
        "draft-model",
        "eagle3",
        "eagle3-dynamic",
        "eagle-static",
        "ngram",
        "plain",
        "tree-8",
        "tree-16",
        "tree-32",
        "tree-64",
        "tree-multi-round",
        "tree-traversal",
        "union",
    ]


def test_other_options_classes_follow_the_same_rules(tmp_path):
    path = tmp_path / "options.yaml"
    path.write_text("temperature: 1e-5\ntop_k: 4\n")
    assert load_options(GenerationOptions, path, ["top_k=5"]) == GenerationOptions(
        temperature=1e-5, top_k=5
    )
    with pytest.raises(
        ConfigError, match=r"unknown key 'temprature'; did you mean 'temperature'\?"
    ):
        load_options(GenerationOptions, {"temprature": 1})


@pytest.mark.parametrize(
    ("parts", "generation", "expected"),
    [
        ({"drafter": "block"}, {}, ("best_first", "roofline", "auto", "match")),
        ({"drafter": "block"}, {"temperature": 1}, ("best_first", "roofline", "auto", "match")),
        ({"drafter": "ngram"}, {}, ("best_first", "fixed", "auto", "match")),
        ({"drafter": "block", "tree": "sampled"}, {}, ("sampled", "fixed", "auto", "match")),
        (
            {"drafter": "block", "tree": "sampled"},
            {"temperature": 1},
            ("sampled", "fixed", "auto", "multi_round"),
        ),
        ({"drafter": "block", "verifier": "match"}, {}, ("best_first", "roofline", "match", None)),
        ({"drafter": "block", "verifier": "drawn"}, {}, ("sampled", "fixed", "drawn", None)),
    ],
)
def test_drafter_alone_gets_defaults_that_fit_together(registry, parts, generation, expected):
    document = {kind: {"use": name} for kind, name in parts.items()}
    if parts["drafter"] == "block":
        document["drafter"]["checkpoint"] = "some/drafter"
    document |= {"target": {"model": "some/model"}, "generation": generation}
    config = load_config(document, registry=registry)
    check_composition(config, registry)
    chosen = [config.tree, config.controller, config.verifier]
    rule = getattr(config.verifier.options, "rule", None)
    assert (*(part.use for part in chosen), rule) == expected
    names = ("tree", "controller", "verifier")
    assert [part.by_default for part in chosen] == [name not in parts for name in names]


def test_lookup_drafter_gets_a_small_default_tree(registry):
    document = {"target": {"model": "some/model"}, "drafter": {"use": "ngram"}}
    config = load_config(document, registry=registry)
    assert (config.tree.options.max_nodes, config.controller.options.nodes) == (16, 16)


def test_plain_decoding_gets_no_default_parts(registry):
    config = load_config({"target": {"model": "some/model"}}, registry=registry)
    assert (config.tree, config.controller, config.verifier) == (None, None, None)


def test_default_part_that_is_not_installed_is_a_problem(registry):
    registered = [entry for entry in registry.registered if entry.plugin.name != "auto"]
    with pytest.raises(ConfigError, match=r"verifier\.use: unknown verifier 'auto'"):
        load_config(
            {"target": {"model": "some/model"}, "drafter": {"use": "ngram"}},
            registry=Registry(tuple(registered), registry.records),
        )


@pytest.mark.parametrize(("old", "new"), OPTION_VALUES["tree.form"].items())
def test_renamed_option_value_names_the_new_one(old, new):
    document = {"target": {"model": "some/model"}, "tree": {"use": "best_first", "form": old}}
    with pytest.raises(ConfigError) as error:
        load_config(document)
    (problem,) = error.value.problems
    assert problem.message == f"{old!r} is now called {new!r}"
    assert load_config(document, [f"tree.form={new}"]).tree.options.form == new
