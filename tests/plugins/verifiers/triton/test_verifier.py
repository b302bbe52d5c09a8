"""The verifier `triton` in whole pipelines in Triton's interpreter, and its errors elsewhere."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve

from draftwood.core.config.compose import check_composition, remarks
from draftwood.core.config.pipeline import load_config
from draftwood.core.draws import Draws
from draftwood.core.errors import CompositionError, RequestError, UnsupportedTarget
from draftwood.core.generation import Pipeline
from draftwood.core.kernels import available
from draftwood.core.node_distributions import TargetDistributions
from draftwood.core.options import Sampling
from draftwood.core.registry.loader import installed
from draftwood.core.registry.plugin import Kind
from draftwood.core.tree import TokenTree
from draftwood.core.values import Verdict
from draftwood.plugins.controllers.fixed import Fixed
from draftwood.plugins.controllers.options import FixedOptions
from draftwood.plugins.trees.best_first import BestFirst
from draftwood.plugins.trees.options import BestFirstOptions, SampledOptions
from draftwood.plugins.trees.sampled import Sampled
from draftwood.plugins.verifiers.auto import Auto
from draftwood.plugins.verifiers.match import Match
from draftwood.plugins.verifiers.options import AutoOptions, TritonOptions
from draftwood.plugins.verifiers.triton.verifier import Triton
from draftwood.testing import Enumerating, toy_drafter, toy_target
from draftwood.testing.decisions import DecisionCase, DecisionEvidence, check_decisions
from draftwood.testing.lossless import (
    DistributionEvidence,
    ExactEvidence,
    Report,
    Speculation,
    check_distribution,
)
from draftwood.testing.suites import VerifierSuite

ZLAB = Path(__file__).parents[3] / "fixtures" / "zlab"


class TestMatchOnTheDevice(VerifierSuite):
    plugin = "triton"
    examples = 12
    tokens = 6


class TestMultiRoundOnTheDevice(VerifierSuite):
    plugin = "triton"
    options = {"rule": "multi_round"}  # noqa: RUF012
    examples = 12
    tokens = 6


class TestRatioOnTheDevice(VerifierSuite):
    plugin = "triton"
    options = {"rule": "ratio"}  # noqa: RUF012
    examples = 6
    tokens = 6


def tree_of(draws: Draws) -> Any:
    if draws is Draws.DETERMINISTIC:
        return BestFirst(BestFirstOptions(max_nodes=4))
    return Sampled(SampledOptions(() if draws is Draws.CHAIN else (2, 2)))


def toy_pipeline(verifier: Any, draws: Draws = Draws.DETERMINISTIC) -> Pipeline:
    return Pipeline(
        toy_target(2),
        toy_drafter("factorized", 2),
        tree_of(draws),
        Fixed(FixedOptions(nodes=4)),
        verifier,
    )


@pytest.mark.parametrize("rule", ["match", "ratio", "multi_round"])
def test_texts_equal_those_of_the_rule_on_the_host(rule: str) -> None:
    draws = Draws.DETERMINISTIC if rule == "match" else Draws.CHAIN
    device = toy_pipeline(Triton(TritonOptions(rule)), draws)
    host = toy_pipeline(Triton(TritonOptions(rule)).reference, draws)
    for temperature in (0.0, 0.9):
        options = {"temperature": temperature, "max_new_tokens": 8, "seed": 5}
        assert device.generate([0, 1], **options).tokens == host.generate([0, 1], **options).tokens


def test_the_result_names_the_verifier_and_counts_its_kernels() -> None:
    result = toy_pipeline(Triton()).generate([0, 1], temperature=1.0, max_new_tokens=6, seed=0)
    decisions = result.stats.rounds + 1  # the prefill is judged too
    assert result.verifier == "triton, rule match"
    launches = result.stats.kernels
    assert launches["race"] == launches["match_walk"] == decisions
    assert result.as_dict()["kernels"] == launches
    greedy = toy_pipeline(Triton()).generate([0, 1], temperature=0.0, max_new_tokens=4, seed=0)
    assert "race" not in greedy.stats.kernels  # launches of other requests are not counted


def test_interleaved_requests_count_their_own_launches() -> None:
    pipeline = toy_pipeline(Triton())
    requests = [
        pipeline.request([0, 1], temperature=t, seed=0, max_new_tokens=4) for t in (1.0, 0.0)
    ]
    runs = [pipeline.engine.open(request) for request in requests]
    while any(run.finish_reason is None for run in runs):
        for run in runs:
            if run.finish_reason is None:
                pipeline.engine.step([run])
    sampled, greedy = (run.stats for run in runs)
    assert sampled.kernels["match_walk"] == sampled.kernels["race"] == sampled.rounds + 1
    assert greedy.kernels["match_walk"] == greedy.rounds + 1
    assert "race" not in greedy.kernels


def test_near_ties_of_all_verdicts_are_summed() -> None:
    pipeline = toy_pipeline(AlwaysNearTie())
    stats = pipeline.generate([0, 1], temperature=1.0, max_new_tokens=6, seed=0).stats
    assert stats.near_ties == stats.as_dict()["near_ties"] == stats.rounds + 1 > 2
    plain = toy_pipeline(Match()).generate([0, 1], temperature=1.0, max_new_tokens=6, seed=0).stats
    assert (plain.near_ties, plain.kernels) == (0, {})


def test_on_a_cpu_it_is_refused_with_the_alternatives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    reason = r"do not run on cpu.*TRITON_INTERPRET=1.*use verifier match"
    with pytest.raises(UnsupportedTarget, match=reason):
        toy_pipeline(Triton())
    config = load_config({"target": {"model": "x"}, "verifier": {"use": "triton"}})
    assert config.verifier.traits.devices == {"cuda"}
    config = load_config(
        {
            "target": {"model": "tiny"},
            "verifier": {"use": "triton"},
            "runtime": {"device": "cpu"},
        }
    )
    with pytest.raises(CompositionError, match="auto picks by the device"):
        check_composition(config)


def test_without_triton_the_reason_names_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(available.importlib.util, "find_spec", lambda name: None)
    reason = available.unavailable_reason("cuda")
    assert reason is not None
    assert "triton is not installed" in reason


def test_interpretation_after_the_kernels_import_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from draftwood.core.kernels.triton import kernels

    monkeypatch.setattr(kernels, "COMPILED", True)
    with pytest.raises(UnsupportedTarget, match="before Python starts"):
        Triton().bind(toy_target())


def test_auto_picks_by_the_device_and_names_its_pick(monkeypatch: pytest.MonkeyPatch) -> None:
    assert toy_pipeline(Auto()).engine.verifier.name == "triton, rule match (auto)"
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    pipeline = toy_pipeline(Auto(AutoOptions("match")))
    result = pipeline.generate([0, 1], max_new_tokens=4)
    assert isinstance(pipeline.engine.verifier.picked, Match)
    assert result.verifier == "match (auto)"
    assert result.stats.kernels == {}


@pytest.mark.parametrize(
    ("device", "pick"),
    [
        ("auto", "'triton, rule match' on a GPU, 'match' on the CPU"),
        ("cpu", "picked 'match' for cpu"),
        ("cuda:1", "picked 'triton, rule match' for cuda"),
    ],
)
def test_remarks_name_what_auto_picks(
    device: str, pick: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    config = load_config(
        {
            "target": {"model": "x"},
            "verifier": {"use": "auto"},
            "runtime": {"device": device},
        }
    )
    assert any(pick in remark for remark in remarks(config))


def test_traits_follow_the_rule() -> None:
    for name in ("triton", "auto"):
        entry = installed().get(Kind.VERIFIER, name)
        traits = {
            rule: entry.traits(entry.plugin.options(rule=rule))
            for rule in ("match", "ratio", "multi_round")
        }
        assert traits["match"].draws == frozenset(Draws)
        assert traits["match"].seed_parity
        assert traits["ratio"].draws == {Draws.CHAIN}
        assert not traits["ratio"].seed_parity
        assert Draws.DETERMINISTIC not in traits["multi_round"].draws


def test_draws_without_keys_are_refused() -> None:
    distributions = TargetDistributions(
        torch.zeros(1, 3), TokenTree.root(0), [0], Sampling(1.0), (), 0
    )
    with pytest.raises(RequestError, match="reference"):
        Triton().judge(distributions, TokenTree.root(0), Enumerating())


class AlwaysNearTie(Match):
    """Reports a near tie in every verdict."""

    def judge(self, *args: Any) -> Verdict:
        verdict = super().judge(*args)
        return Verdict(verdict.accepted, verdict.bonus, near_ties=1)


class WrongBonus(Match):
    """Commits another bonus token than its reference."""

    @property
    def reference(self) -> Match:
        return Match()

    def judge(self, *args: Any) -> Verdict:
        verdict = super().judge(*args)
        return evolve(verdict, bonus=(verdict.bonus + 1) % 3)


class WrongWithNearTies(WrongBonus, AlwaysNearTie):
    """Also reports a near tie in every verdict."""


def test_decisions_other_than_the_references_are_biased_unless_near_ties() -> None:
    wrong = check_decisions(WrongBonus(), frozenset(Draws), cases=4)
    assert wrong is not None
    assert wrong.biased
    excused = check_decisions(WrongWithNearTies(), frozenset(Draws), cases=4)
    assert excused is not None
    assert (excused.biased, excused.near_ties) == (False, 4)
    assert check_decisions(Match(), frozenset(Draws)) is None


def test_the_verifier_suite_fails_for_other_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in (WrongBonus, WrongWithNearTies):

        class Suite(VerifierSuite):
            plugin = "match"
            build: Callable[..., Any] = lambda self, wrong=wrong: wrong()

        with pytest.raises(AssertionError):
            Suite().test_it_decides_as_its_reference_does()


def test_penalties_give_the_decisions_of_the_host() -> None:
    case = DecisionCase(penalty=True, seed=2)
    device, host = case.judged([Triton(), Match()])
    assert device == host


@pytest.fixture(scope="module")
def tiny() -> Callable[[Any], Pipeline]:
    """A DFlash pipeline on a tiny random target, with this verifier."""
    from draftwood.core.hf import load_target
    from draftwood.plugins.drafters.dflash.drafter import DFlash
    from draftwood.plugins.drafters.options import DFlashOptions

    target = load_target(ZLAB / "target", device="cpu", dtype="float32")

    def build(verifier: Any) -> Pipeline:
        return Pipeline(
            target,
            DFlash(DFlashOptions(checkpoint=ZLAB / "dflash")),
            BestFirst(BestFirstOptions(max_nodes=3, form="by_level")),
            Fixed(FixedOptions(nodes=3)),
            verifier,
            kernels="triton",
        )

    return build


@pytest.mark.slow
def test_a_model_with_triton_kernels_gives_the_tokens_of_plain_decoding(
    tiny: Callable[[Any], Pipeline],
) -> None:
    """With attention, judge and compaction by kernels; and with attention and compaction alone."""
    options = {"temperature": 0.9, "max_new_tokens": 6, "seed": 3}
    for verifier in (Triton(), Match()):
        pipeline = tiny(verifier)
        result = pipeline.generate([1, 2, 3], **options)
        plain = Pipeline(pipeline.target).generate([1, 2, 3], **options)
        assert result.tokens == plain.tokens
        launches = result.stats.kernels
        assert launches["tree_attention"] > 0
        assert (launches["match_walk"] > 0) is isinstance(verifier, Triton)


def test_lossless_enumerates_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    from draftwood.testing.lossless import exact

    monkeypatch.setattr(exact, "CASES", 2)

    def build() -> dict[str, Any]:
        return {
            "tree": BestFirst(BestFirstOptions(max_nodes=4)),
            "controller": Fixed(FixedOptions(nodes=4)),
            "verifier": Triton(),
        }

    evidence = exact.check_exact("factorized", build)
    assert evidence.cases == len(exact.cases("factorized"))
    assert (evidence.biased, evidence.reason) == (False, None)


@pytest.mark.slow
def test_lossless_accepts_a_pipeline_with_triton_kernels(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`draftwood lossless` on a tiny random target, with fewer cases than for users."""
    import json

    from draftwood.cli import execute, lossless
    from draftwood.testing import decisions
    from draftwood.testing.lossless import distribution, exact

    monkeypatch.setattr(exact, "CASES", 2)
    monkeypatch.setattr(decisions, "check_decisions", partial(check_decisions, cases=8))
    monkeypatch.setattr(distribution, "samples_needed", lambda bias: 12)
    monkeypatch.setattr(lossless, "PARITY_TOKENS", 4)
    monkeypatch.setattr(lossless, "DISTRIBUTION_TOKENS", 6)
    path = tmp_path / "pipeline.yaml"
    path.write_text(
        f"target: {{model: {ZLAB / 'target'}}}\n"
        f"drafter: {{use: dflash, checkpoint: {ZLAB / 'dflash'}}}\n"
        "tree: {use: best_first, max_nodes: 4}\n"
        "controller: {use: fixed, nodes: 4}\n"
        "verifier: {use: triton}\n"
        "runtime: {dtype: float32}\n"
    )
    code = execute(["lossless", str(path), "--json", "--bias", "0.5"])
    report = json.loads(capsys.readouterr().out)
    assert (code, report["verdict"], report["doubts"]) == (0, "lossless", [])
    assert report["decisions"]["difference"] is None
    assert report["distribution"]["smallest_bias"] == 0.5
    assert min(report["rounds"], report["accepted"], report["rejected"]) > 0
    assert min(report["kernels"][name] for name in ("tree_attention", "compact", "race")) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "draws"), [("ratio", Draws.CHAIN), ("multi_round", Draws.WITHOUT_REPLACEMENT)]
)
def test_sampled_text_has_the_targets_distribution(rule: str, draws: Draws) -> None:
    pipeline = toy_pipeline(Triton(TritonOptions(rule)), draws)
    evidence = check_distribution(pipeline, [[0, 1], [2, 0]], 12, smallest_bias=0.5)
    assert not evidence.biased, evidence.tests
    assert min(evidence.speculation.accepted, evidence.speculation.rejected) > 5


def test_the_same_number_of_tokens_shows_a_wrong_distribution() -> None:
    assert check_distribution(
        toy_pipeline(WrongBonus()), [[0, 1], [2, 0]], 12, smallest_bias=0.5
    ).biased


@pytest.mark.parametrize(
    ("decisions", "verdict"),
    [
        (None, "lossless"),
        (DecisionEvidence(48, 1), "lossless"),
        (DecisionEvidence(48, 0, "one that differs"), "biased"),
        (DecisionEvidence(48, 30), "inconclusive"),
    ],
)
def test_verdict_of_lossless_by_decisions(decisions: DecisionEvidence | None, verdict: str) -> None:
    probs = DistributionEvidence(1.0, 10, (), Speculation(9, 5, 4))
    report = Report(ExactEvidence(24, 4, 0.0), (), probs, True, decisions)
    assert report.verdict == verdict
    assert (report.as_dict()["decisions"] is None) == (decisions is None)
