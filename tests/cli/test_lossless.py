"""`draftwood lossless`: an exact pipeline passes with its evidence; a biased plugin is shown."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from draftwood.cli.lossless import JSON
from draftwood.core import build
from draftwood.core.config import pipeline
from draftwood.core.draws import Draws
from draftwood.core.interfaces import NodeDistributions
from draftwood.core.randomness import Randomness
from draftwood.core.registry import loader
from draftwood.core.registry.plugin import Kind, Plugin, TreeTraits, VerifierTraits
from draftwood.core.registry.registry import PluginSource, Registered
from draftwood.core.tree import TokenTree
from draftwood.core.values import Verdict
from draftwood.plugins.trees.options import SampledOptions
from draftwood.plugins.verifiers.match import Match
from draftwood.plugins.verifiers.options import MatchOptions
from draftwood.testing import OracleTarget

from .conftest import Draftwood, Letters

SIZE = len(Letters.alphabet)
VERIFIERS = (
    "DeepBonus",
    "ManyChildren",
    "LateRounds",
    "FarPositions",
    "LastOfEqual",
    "DeepWithoutProcessors",
)
"""Of properties.depth_faults; none shows in toys of depth 2, or in the sampled text here."""

DRAWN_VERIFIERS = ("TriplesOnce", "WrappedKeys")


class TakesTheFirstChild(Match):
    """A third party's biased verifier: it accepts the first child without checking it."""

    def judge(self, distributions: NodeDistributions, tree: TokenTree, rng: Randomness) -> Verdict:
        if tree.nodes == 0:
            return super().judge(distributions, tree, rng)
        return Verdict((0, 1), rng.categorical(distributions.probs(1), distributions.position(1)))


@pytest.fixture
def lossless(
    draftwood: Draftwood, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Any]:
    """lossless(verifier, ...) -> the command's result on a target that says the alphabet."""

    def probs(prefix: tuple[int, ...]) -> list[float]:
        weights = [0.03] * SIZE
        weights[(prefix[-1] + 1) % SIZE] = 1.0
        return weights

    monkeypatch.setattr(build, "_load_target", lambda *_: (OracleTarget(SIZE, probs), Letters()))
    source = PluginSource("somebody-elses", "0.1", "biased")
    faults = [("biased", f"{__name__}:TakesTheFirstChild")]
    faults += [(name, f"properties.depth_faults:{name}") for name in (*VERIFIERS, *DRAWN_VERIFIERS)]
    plugins = [
        Registered(
            Kind.VERIFIER,
            Plugin(
                name,
                "biased",
                MatchOptions,
                factory,
                lambda options: VerifierTraits(frozenset(Draws)),
            ),
            source,
        )
        for name, factory in faults
    ]
    drops = Plugin(
        "drops",
        "drops deep nodes",
        SampledOptions,
        "properties.depth_faults:DropsDeepUnlikely",
        lambda options: TreeTraits(options.draws),
    )
    plugins.append(Registered(Kind.TREE, drops, source))
    registry = loader.installed()
    registry = evolve(registry, registered=(*registry.registered, *plugins))
    monkeypatch.setattr(loader, "installed", lambda: registry)
    monkeypatch.setattr(pipeline, "installed", lambda: registry)

    def run(verifier: str, *arguments: str, tree: str = "best_first, max_nodes: 8") -> Any:
        path = tmp_path / "pipeline.yaml"
        path.write_text(
            "target: {model: some/model}\n"
            "drafter: {use: ngram}\n"
            f"tree: {{use: {tree}}}\n"
            "controller: {use: fixed, nodes: 8}\n"
            f"verifier: {{use: {verifier}}}\n"
        )
        return draftwood("lossless", str(path), *arguments)

    return run


def test_an_exact_pipeline_is_lossless_with_its_evidence(lossless: Callable[..., Any]) -> None:
    ran = lossless("match", "--json")
    assert ran.code == 0, ran.err
    result = json.loads(ran.out)
    assert set(result) == {key for key in JSON if "." not in key}
    assert (result["verdict"], result["doubts"]) == ("lossless", [])
    assert result["exact"]["cases"] >= 20
    assert result["exact"]["max_error"] < 1e-12
    assert result["parity"]["float32"]["differences"] == []
    assert result["parity"]["float32"]["control"]["differences"] == []
    assert all(test["p_value"] > 1e-6 for test in result["distribution"]["tests"])
    assert min(result["rounds"], result["accepted"], result["rejected"]) > 0


def test_a_biased_third_party_verifier_exits_with_1_and_shows_where(
    lossless: Callable[..., Any],
) -> None:
    ran = lossless("biased")
    assert ran.code == 1
    assert ran.out.endswith("verdict biased\n")
    assert "the first wrong prefix is [0, 1] + [" in ran.out
    assert "where the target gives" in ran.out
    assert "toy lookup drafter" in ran.out
    as_json = json.loads(lossless("biased", "--json").out)
    assert as_json["verdict"] == "biased"
    assert as_json["exact"]["biased"]["pipeline"] != as_json["exact"]["biased"]["target"]
    # The text of the model itself shows it too, not the toys alone.
    assert min(test["p_value"] for test in as_json["distribution"]["tests"]) < 1e-9


@pytest.mark.covers("shallow-certificate")
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_a_verifier_that_is_biased_deep_wide_late_or_at_ties_exits_with_1(
    lossless: Callable[..., Any], verifier: str
) -> None:
    ran = lossless(verifier, "--bias", "0.5")
    assert ran.code == 1
    assert ran.out.endswith("verdict biased\n")
    assert "the first wrong prefix is [" in ran.out
    assert "decided in round" in ran.out


@pytest.mark.covers("shallow-certificate")
def test_a_bias_among_equal_siblings_exits_with_1(lossless: Callable[..., Any]) -> None:
    tree = "sampled, widths: [2, 1], replacement: true"
    ran = lossless("TriplesOnce", "--bias", "0.5", tree=tree)
    assert (ran.code, ran.out.endswith("verdict biased\n")) == (1, True)
    assert "repeated toy" in ran.out


@pytest.mark.covers("shallow-certificate")
def test_a_random_number_used_twice_in_a_long_text_exits_with_1(
    lossless: Callable[..., Any],
) -> None:
    ran = lossless("WrappedKeys", "--bias", "0.5", tree="sampled, widths: [2, 1]")
    assert ran.code == 1
    assert "was made twice" in ran.out


@pytest.mark.covers("shallow-certificate")
def test_a_tree_that_drops_deep_draws_exits_with_1(lossless: Callable[..., Any]) -> None:
    ran = lossless("ratio", "--bias", "0.5", "--set", "generation.temperature=1", tree="drops")
    assert (ran.code, ran.out.endswith("verdict biased\n")) == (1, True)


@pytest.mark.covers("shallow-certificate")
def test_the_printed_code_repeats_the_biased_case(
    lossless: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    out = lossless("DeepBonus", "--bias", "0.5").out
    _, _, rest = out.partition("to repeat it, in Python:\n")
    code = [line.strip() for line in rest.splitlines() if line.startswith("    ")][:2]
    exec("\n".join(code), {})
    repeated = capsys.readouterr().out
    assert "the first wrong prefix is" in repeated
    wrong = next(line.strip() for line in repeated.splitlines() if "first wrong" in line)
    assert wrong in out


def test_sampled_text_is_compared_with_plain_decodings_where_seed_parity_is_declared(
    lossless: Callable[..., Any],
) -> None:
    result = json.loads(lossless("match", "--json", "--bias", "0.5").out)
    assert (result["seeded"]["temperature"], result["seeded"]["differences"]) == (1.0, [])
    ran = lossless("biased", "--json", "--bias", "0.5")
    assert json.loads(ran.out)["seeded"] is None


def test_a_pipeline_that_never_speculates_is_inconclusive(lossless: Callable[..., Any]) -> None:
    """Which is no pass: a check that compared nothing has shown nothing."""
    ran = lossless("match", "--json", "--set", "controller.nodes=0")
    result = json.loads(ran.out)
    assert (ran.code, result["verdict"]) == (1, "inconclusive")
    assert "shows little" in result["doubts"][0]


def test_a_composition_without_a_distribution_is_refused_before_anything_runs(
    lossless: Callable[..., Any],
) -> None:
    ran = lossless("ratio")
    assert (ran.code, ran.out) == (2, "")
    assert "would change the output" in ran.err
