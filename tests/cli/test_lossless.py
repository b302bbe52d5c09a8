"""`draftwood lossless`: an exact pipeline passes with its evidence; a biased plugin is shown."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from draftwood.cli.lossless import JSON
from draftwood.core import build
from draftwood.core.draws import Draws
from draftwood.core.interfaces import NodeDistributions
from draftwood.core.randomness import Randomness
from draftwood.core.registry import loader
from draftwood.core.registry.plugin import Kind, Plugin, VerifierTraits
from draftwood.core.registry.registry import PluginSource, Registered
from draftwood.core.tree import TokenTree
from draftwood.core.values import Verdict
from draftwood.plugins.verifiers.match import Match
from draftwood.plugins.verifiers.options import MatchOptions
from draftwood.testing import OracleTarget

from .conftest import Draftwood, Letters

SIZE = len(Letters.alphabet)


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
    name = f"{__name__}:TakesTheFirstChild"
    plugin = Plugin(
        "biased",
        "accepts drafts without checking",
        MatchOptions,
        name,
        lambda options: VerifierTraits(frozenset(Draws)),
    )
    other = Registered(Kind.VERIFIER, plugin, PluginSource("somebody-elses", "0.1", "biased"))
    registry = loader.installed()
    registry = evolve(registry, registered=(*registry.registered, other))
    monkeypatch.setattr(loader, "installed", lambda: registry)

    def run(verifier: str, *arguments: str) -> Any:
        path = tmp_path / "pipeline.yaml"
        path.write_text(
            "target: {model: some/model}\n"
            "drafter: {use: ngram}\n"
            "tree: {use: best_first, max_nodes: 8}\n"
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
