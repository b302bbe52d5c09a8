"""Policies compared on scripted rounds, and the report about them."""

import json

import pytest

from draftwood.plugins.controllers.options import RooflineOptions
from studies.budget import ablation

from .texts import accepted_lengths, exact_models, priced, text_of


@pytest.mark.parametrize("share", [0.5, 0.7, 0.9])
def test_adaptive_policies_are_within_4_percent_of_the_best_fixed_budget(share):
    texts = [text_of(accepted_lengths(300, share, seed), share) for seed in range(4)]
    times = priced(per_token=0.001)
    models = exact_models(times, 0.001)
    comparison = ablation.walk_policies("scripted", 1.0, texts, times, models, RooflineOptions())
    spent = {name: ablation.seconds(walks) for name, walks in comparison.walks.items()}
    assert spent["oracle"] < min(s for name, s in spent.items() if name != "oracle")
    best = spent[comparison.best_fixed]
    assert spent["bastion"] < 1.04 * best
    assert spent["measured"] < 1.04 * best
    # Negative control: budgets do differ.
    assert max(spent[f"fixed-{n}"] for n in (4, 8, 16)) > 1.1 * best
    assert all(walk.tokens == 300 for walks in comparison.walks.values() for walk in walks)


def test_uncalibrated_scores_of_an_overconfident_drafter_cost_over_10_percent():
    texts = [text_of(accepted_lengths(400, 0.6, seed), share=0.95) for seed in range(3)]
    times = priced(per_token=0.002)
    models = exact_models(times, 0.002)
    comparison = ablation.walk_policies("scripted", 1.0, texts, times, models, RooflineOptions())
    spent = {name: ablation.seconds(walks) for name, walks in comparison.walks.items()}
    assert spent["uncalibrated"] > 1.1 * spent["bastion"]


def test_conclusions_compare_bastion_with_every_fixed_budget():
    times = priced()
    texts = [text_of(accepted_lengths(60, 0.8, seed)) for seed in range(3)]
    comparison = ablation.walk_policies(
        "scripted", 0.0, texts, times, exact_models(times), RooflineOptions()
    )
    report = ablation.report([comparison], seed=0)
    assert json.loads(json.dumps(report)) == report
    text = ablation.markdown(report, "mine")
    assert "| bastion |" in text
    assert "of the fixed budget that happens to be best for each table" in text
    slower = {"value": 0.9, "low": 0.88, "high": 0.93}
    faster = {"value": 1.1, "low": 1.05, "high": 1.2}
    over = report["overall"]["bastion_over"] = dict.fromkeys(("plain", *ablation.FIXED), faster)
    assert "faster than any single fixed budget" in ablation.conclusion(report["overall"])
    over["fixed-8"] = slower
    report["overall"]["bastion_over_best_fixed_of_each"] = slower
    assert "not within 3%" in ablation.conclusion(report["overall"])
    assert "slower than fixed-8" in ablation.conclusion(report["overall"])
    over["fixed-8"] = {**slower, "high": 1.01}
    assert "within the interval" in ablation.conclusion(report["overall"])
