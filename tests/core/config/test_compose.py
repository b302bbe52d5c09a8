"""Parts that do not work together are refused before weights load, naming both sides."""

import json

import pytest

from draftwood.core.config.compose import check_composition, check_factories, remarks
from draftwood.core.config.pipeline import load_config
from draftwood.core.errors import CompositionError
from draftwood.core.registry.plugin import DrafterTraits, Kind, Plugin
from draftwood.core.registry.registry import PluginSource, Registered, Registry

PARTS = {
    "target": {"model": "some/model"},
    "drafter": {"use": "block", "checkpoint": "some/drafter"},
    "tree": {"use": "best_first"},
    "controller": {"use": "fixed"},
    "verifier": {"use": "match"},
}


@pytest.fixture
def refused(registry):
    """The problems of a composition; [] if it is accepted."""

    def refused(**parts) -> list[str]:
        config = load_config({**PARTS, **parts}, registry=registry)
        try:
            check_composition(config, registry)
        except CompositionError as error:
            return [str(problem) for problem in error.problems]
        return []

    return refused


@pytest.mark.parametrize("tree", ["best_first", "chain"])
@pytest.mark.parametrize("verifier", ["match", "multi_round"])
def test_fitting_parts_are_accepted(refused, tree, verifier):
    assert refused(tree={"use": tree}, verifier={"use": verifier}) == []


def test_plain_decoding_needs_the_target_alone(refused):
    alone = {"drafter": None, "tree": None, "controller": None}
    assert refused(**alone) == []
    assert refused(**alone, verifier=None) == []


@pytest.mark.parametrize("kind", ["tree", "controller"])
def test_tree_or_controller_without_a_drafter_is_refused(refused, kind):
    rest = {"tree": None, "controller": None, kind: PARTS[kind]}
    (found,) = refused(drafter=None, **rest)
    assert f"{kind}: {PARTS[kind]['use']!r} has nothing to work on" in found


@pytest.mark.covers("unverifiable-draws")
def test_verifier_that_is_not_exact_for_the_trees_draws_is_refused(refused):
    (found,) = refused(tree={"use": "sampled"})
    assert found.splitlines() == [
        "<mapping>: verifier.use: 'match' would change the output: it verifies deterministic "
        "trees, and those of 'sampled' are iid",
        "  verifiers for iid trees: auto, drawn, kernel, multi_round",
        "  trees that 'match' verifies: best_first, chain",
    ]


def test_tree_that_cannot_grow_from_the_drafters_form_is_refused(refused):
    parts = {"tree": {"use": "sampled"}, "verifier": {"use": "multi_round"}}
    assert refused(**parts) == []
    (found,) = refused(**parts, drafter={"use": "ngram"})
    assert found.splitlines() == [
        "<mapping>: tree.use: 'sampled' grows from factorized, mixture proposals, and those of "
        "drafter 'ngram' are lookup",
        "  trees for lookup proposals: best_first, chain",
        "  drafters for 'sampled': none with default options",
    ]


@pytest.mark.parametrize(
    ("device", "fits"), [("auto", True), ("cuda", True), ("cuda:1", True), ("cpu", False)]
)
def test_verifier_is_refused_on_other_devices(refused, device, fits):
    found = refused(verifier={"use": "kernel"}, runtime={"device": device})
    assert (found == []) is fits
    assert fits or "'kernel' runs on cuda, and runtime.device is 'cpu'" in found[0]


@pytest.fixture
def target(tmp_path):
    """A folder with only the config of a target of 4 layers, width 8 and 1000 tokens."""
    config = {"num_hidden_layers": 4, "hidden_size": 8, "vocab_size": 1000}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


@pytest.mark.covers("vocabulary-size")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"taps": [0, 3], "layers": 4, "hidden": 8, "vocabulary": 1000}, None),
        ({"vocabulary": 1024}, None),
        ({"taps": [0, 4]}, "'block' reads target layers 4; "),
        ({"taps": [-1]}, "'block' reads target layers -1; "),
        ({"layers": 5}, "made for a target of layers 5; "),
        ({"hidden": 16}, "made for a target of hidden size 16; "),
        ({"vocabulary": 2000}, "made for a vocabulary of 2000 tokens; "),
    ],
)
def test_drafter_for_another_target_is_refused(refused, target, options, message):
    drafter = {"use": "block", "checkpoint": "some/drafter", **options}
    found = refused(target={"model": target}, drafter=drafter)
    assert (found == []) is (message is None)
    assert message is None or message in found[0]


@pytest.mark.parametrize(
    "config",
    [
        {"text_config": {"num_hidden_layers": 2, "hidden_size": 8, "vocab_size": 9}},
        {"n_layer": 2, "n_embd": 8, "vocab_size": 9},
    ],
)
def test_sizes_are_read_from_nested_and_older_configs(refused, tmp_path, config):
    (tmp_path / "config.json").write_text(json.dumps(config))
    drafter = {"use": "block", "checkpoint": "some/drafter", "layers": 3}
    (found,) = refused(target={"model": tmp_path}, drafter=drafter)
    assert "of layers 3" in found


def test_all_reasons_are_given_at_once(refused):
    found = refused(tree={"use": "sampled"}, drafter={"use": "ngram"}, runtime={"device": "cpu"})
    assert len(found) == 2


@pytest.mark.parametrize(
    ("traits", "message"),
    [
        (lambda o: 1 / 0, "failed to give its traits (ZeroDivisionError: division by zero)"),
        (lambda o: 3, "gave int as traits, not DrafterTraits"),
    ],
)
def test_plugin_whose_traits_fail_is_named_with_its_distribution(registry, traits, message):
    good = registry.get(Kind.DRAFTER, "ngram").plugin
    plugin = Plugin("odd", "", good.options, "m:C", traits)
    entry = Registered(Kind.DRAFTER, plugin, PluginSource("odd-spec", "0.1", "odd"))
    registry = Registry((*registry.registered, entry), ())
    config = load_config({**PARTS, "drafter": {"use": "odd"}}, registry=registry)
    with pytest.raises(CompositionError, match=r"drafter 'odd' of 'odd-spec 0\.1'") as error:
        check_composition(config, registry)
    assert message in str(error.value)
    assert isinstance(good.traits(good.options()), DrafterTraits)


@pytest.mark.parametrize(
    ("controller", "verifier", "temperature", "said"),
    [
        ("timed", "multi_round", 1.0, True),
        ("timed", "multi_round", 0.0, False),
        ("timed", "match", 1.0, False),
        ("fixed", "multi_round", 1.0, False),
    ],
)
def test_remark_if_a_seed_does_not_reproduce_the_text(
    registry, controller, verifier, temperature, said
):
    parts = {
        "controller": {"use": controller},
        "verifier": {"use": verifier},
        "generation": {"temperature": temperature},
    }
    found = remarks(load_config({**PARTS, **parts}, registry=registry))
    assert bool(found) is said
    assert not said or "not reproducible from the seed" in found[0]


@pytest.mark.parametrize(
    ("kernels", "device", "reason"),
    [
        ("auto", "cpu", "graphs are captured on a GPU, and runtime.device is 'cpu'"),
        ("torch", "auto", "graphs need Triton kernels, and runtime.kernels is 'torch'"),
        ("torch", "cuda", "graphs need Triton kernels, and runtime.kernels is 'torch'"),
        ("triton", "cuda", None),
        ("auto", "cuda", None),
        ("auto", "auto", None),
    ],
)
def test_graphs_on_needs_a_gpu_and_triton_kernels(refused, kernels, device, reason):
    parts = {"drafter": None, "tree": None, "controller": None, "verifier": None}
    for mode in ("auto", "off"):
        runtime = {"device": device, "graphs": mode, "kernels": kernels}
        assert not any("graphs" in problem for problem in refused(**parts, runtime=runtime))
    runtime = {"device": device, "graphs": "on", "kernels": kernels}
    found = refused(**parts, runtime=runtime)
    named = [problem for problem in found if "runtime.graphs" in problem]
    assert bool(named) is (reason is not None)
    assert reason is None or reason in named[0]


@pytest.mark.parametrize(
    ("kernels", "device", "interpreted", "refusal"),
    [
        ("triton", "cpu", "0", True),
        ("triton", "cpu", "1", False),
        ("triton", "cuda:1", "0", False),
        ("triton", "auto", "0", False),
        ("auto", "cpu", "0", False),
        ("torch", "cpu", "0", False),
    ],
)
def test_triton_kernels_on_a_cpu_are_refused(
    refused, monkeypatch, kernels, device, interpreted, refusal
):
    monkeypatch.setenv("TRITON_INTERPRET", interpreted)
    problems = refused(runtime={"device": device, "kernels": kernels})
    message = "Triton kernels run on a GPU, and runtime.device is 'cpu'"
    assert any("runtime.kernels" in each and message in each for each in problems) is refusal


def test_factory_that_cannot_be_imported_names_plugin_and_distribution(registry):
    config = load_config(PARTS, registry=registry)
    with pytest.raises(CompositionError) as error:
        check_factories(config)
    problems = [problem.message for problem in error.value.problems]
    assert len(problems) == 4
    assert problems[0].startswith("drafter 'block' of 'draftwood 0' cannot be loaded from nowhere:")
    assert error.value.problems[0].path == "drafter.use"
