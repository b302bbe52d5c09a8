"""The `triton` verifier in whole pipelines, in Triton's interpreter, and what it says elsewhere."""

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
def test_whole_texts_are_the_rules(rule: str) -> None:
    draws = Draws.DETERMINISTIC if rule == "match" else Draws.CHAIN
    device = toy_pipeline(Triton(TritonOptions(rule)), draws)
    host = toy_pipeline(Triton(TritonOptions(rule)).reference, draws)
    for temperature in (0.0, 0.9):
        wanted = {"temperature": temperature, "max_new_tokens": 8, "seed": 5}
        assert device.generate([0, 1], **wanted).tokens == host.generate([0, 1], **wanted).tokens


def test_the_result_says_what_judged_and_how_often_each_kernel_ran() -> None:
    result = toy_pipeline(Triton()).generate([0, 1], temperature=1.0, max_new_tokens=6, seed=0)
    decisions = result.stats.rounds + 1  # the prefill is judged too
    assert result.verifier == "triton, rule match"
    ran = result.stats.kernels
    assert ran["race"] == ran["walk"] == decisions
    assert result.as_dict()["kernels"] == ran
    again = toy_pipeline(Triton()).generate([0, 1], temperature=0.0, max_new_tokens=4, seed=0)
    assert "race" not in again.stats.kernels  # another request's launches are not this one's


def test_requests_that_take_turns_count_their_own_launches() -> None:
    """Though kernels are counted by process, and both are at work all the time."""
    pipeline = toy_pipeline(Triton())
    asked = [pipeline.request([0, 1], temperature=t, seed=0, max_new_tokens=4) for t in (1.0, 0.0)]
    runs = [pipeline.engine.open(request) for request in asked]
    while any(run.finish_reason is None for run in runs):
        for run in runs:
            if run.finish_reason is None:
                pipeline.engine.step([run])
    sampled, greedy = (run.stats for run in runs)
    assert sampled.kernels["walk"] == sampled.kernels["race"] == sampled.rounds + 1
    assert greedy.kernels["walk"] == greedy.rounds + 1
    assert "race" not in greedy.kernels


def test_decisions_near_rounding_are_summed() -> None:
    """One in each of the rounds and in the prefill; a verifier that counts none has none."""
    pipeline = toy_pipeline(NearEachTime())
    stats = pipeline.generate([0, 1], temperature=1.0, max_new_tokens=6, seed=0).stats
    assert stats.near_ties == stats.as_dict()["near_ties"] == stats.rounds + 1 > 2
    plain = toy_pipeline(Match()).generate([0, 1], temperature=1.0, max_new_tokens=6, seed=0).stats
    assert (plain.near_ties, plain.kernels) == (0, {})


def test_without_a_device_it_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_without_triton_the_reason_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(available.importlib.util, "find_spec", lambda name: None)
    reason = available.unavailable_reason("cuda")
    assert reason is not None
    assert "triton is not installed" in reason


def test_kernels_that_were_compiled_for_a_gpu_do_not_run_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from draftwood.core.kernels.triton import kernels

    monkeypatch.setattr(kernels, "COMPILED", True)
    with pytest.raises(UnsupportedTarget, match="before Python starts"):
        Triton().bind(toy_target())


def test_auto_picks_by_the_device_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert toy_pipeline(Auto()).engine.verifier.name == "triton, rule match (auto)"
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    pipeline = toy_pipeline(Auto(AutoOptions("match")))
    result = pipeline.generate([0, 1], max_new_tokens=4)
    assert isinstance(pipeline.engine.verifier.picked, Match)
    assert result.verifier == "match (auto)"
    assert result.stats.kernels == {}


@pytest.mark.parametrize(
    ("device", "wanted"),
    [
        ("auto", "'triton, rule match' on a GPU, 'match' on the CPU"),
        ("cpu", "picked 'match' for cpu"),
        ("cuda:1", "picked 'triton, rule match' for cuda"),
    ],
)
def test_check_says_what_auto_picks(
    device: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    config = load_config(
        {
            "target": {"model": "x"},
            "verifier": {"use": "auto"},
            "runtime": {"device": device},
        }
    )
    assert any(wanted in remark for remark in remarks(config))


def test_traits_follow_the_rule() -> None:
    for name in ("triton", "auto"):
        entry = installed().get(Kind.VERIFIER, name)
        found = {
            rule: entry.traits(entry.plugin.options(rule=rule))
            for rule in ("match", "ratio", "multi_round")
        }
        assert found["match"].draws == frozenset(Draws)
        assert found["match"].seed_parity
        assert found["ratio"].draws == {Draws.CHAIN}
        assert not found["ratio"].seed_parity
        assert Draws.DETERMINISTIC not in found["multi_round"].draws


def test_draws_without_keys_are_refused() -> None:
    distributions = TargetDistributions(
        torch.zeros(1, 3), TokenTree.root(0), [0], Sampling(1.0), (), 0
    )
    with pytest.raises(RequestError, match="reference"):
        Triton().judge(distributions, TokenTree.root(0), Enumerating())


class NearEachTime(Match):
    """Says of every decision that rounding could have changed it."""

    def judge(self, *args: Any) -> Verdict:
        verdict = super().judge(*args)
        return Verdict(verdict.accepted, verdict.bonus, near_ties=1)


class Off(Match):
    """Decides as nobody should: one token later."""

    @property
    def reference(self) -> Match:
        return Match()

    def judge(self, *args: Any) -> Verdict:
        verdict = super().judge(*args)
        return evolve(verdict, bonus=(verdict.bonus + 1) % 3)


class Excused(Off, NearEachTime):
    """And says that it was near every time."""


def test_decisions_that_differ_are_found() -> None:
    found = check_decisions(Off(), frozenset(Draws), cases=4)
    assert found is not None
    assert found.biased
    excused = check_decisions(Excused(), frozenset(Draws), cases=4)
    assert excused is not None
    assert (excused.biased, excused.near_ties) == (False, 4)
    assert check_decisions(Match(), frozenset(Draws)) is None


def test_the_suite_refuses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in (Off, Excused):

        class Suite(VerifierSuite):
            plugin = "match"
            build: Callable[..., Any] = lambda self, wrong=wrong: wrong()

        with pytest.raises(AssertionError):
            Suite().test_it_decides_as_its_reference_does()


def test_penalties_are_the_hosts() -> None:
    case = DecisionCase(penalty=True, seed=2)
    mine, wanted = case.judged([Triton(), Match()])
    assert mine == wanted


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
def test_a_real_target_says_with_one_seed_what_it_says_plainly(
    tiny: Callable[[Any], Pipeline],
) -> None:
    """Attention, judge and commit by kernels, in float32."""
    mine = tiny(Triton())
    wanted = {"temperature": 0.9, "max_new_tokens": 6, "seed": 3}
    found = mine.generate([1, 2, 3], **wanted)
    plain = Pipeline(mine.target).generate([1, 2, 3], **wanted)
    assert found.tokens == plain.tokens
    assert found.stats.kernels["tree_attention"] > 0


def test_lossless_enumerates_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    from draftwood.testing.lossless import exact

    monkeypatch.setattr(exact, "CASES", 2)

    def build() -> dict[str, Any]:
        return {
            "tree": BestFirst(BestFirstOptions(max_nodes=4)),
            "controller": Fixed(FixedOptions(nodes=4)),
            "verifier": Triton(),
        }

    found = exact.check_exact("factorized", build)
    assert found.cases == len(exact.cases("factorized"))
    assert (found.biased, found.reason) == (False, None)


@pytest.mark.slow
def test_lossless_shows_a_pipeline_through_the_kernels_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`draftwood lossless` on a tiny random target, a fraction as long as for a user: decisions
    beside the reference's, text beside plain decoding's, and the distribution of sampled text."""
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
    """Of the rules that one seed does not hold to plain decoding's text."""
    pipeline = toy_pipeline(Triton(TritonOptions(rule)), draws)
    found = check_distribution(pipeline, [[0, 1], [2, 0]], 12, smallest_bias=0.5)
    assert not found.biased, found.tests
    assert min(found.speculation.accepted, found.speculation.rejected) > 5


def test_as_many_tokens_show_a_distribution_that_is_not_the_targets() -> None:
    assert check_distribution(toy_pipeline(Off()), [[0, 1], [2, 0]], 12, smallest_bias=0.5).biased


@pytest.mark.parametrize(
    ("decisions", "verdict"),
    [
        (None, "lossless"),
        (DecisionEvidence(48, 1), "lossless"),
        (DecisionEvidence(48, 0, "one that differs"), "biased"),
        (DecisionEvidence(48, 30), "inconclusive"),
    ],
)
def test_lossless_believes_no_decision_that_differs_or_is_excused(
    decisions: DecisionEvidence | None, verdict: str
) -> None:
    probs = DistributionEvidence(1.0, 10, (), Speculation(9, 5, 4))
    report = Report(ExactEvidence(24, 4, 0.0), (), probs, True, decisions)
    assert report.verdict == verdict
    assert (report.as_dict()["decisions"] is None) == (decisions is None)
