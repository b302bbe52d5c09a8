"""Measuring: order, what is shared, what a record holds, going on after an interrupt."""

import pytest
from attrs import evolve

from draftwood.bench.comparing import ROUNDING_MARGINS, differences
from draftwood.bench.contestants import Baselines, load_contestants
from draftwood.bench.decoding import Decoded, best_in_hindsight
from draftwood.bench.journal import Journal
from draftwood.bench.measuring import Plan, measure
from draftwood.bench.schedule import schedule
from draftwood.core.errors import ConfigError, RequestError
from draftwood.core.proposals import LookupProposal
from draftwood.core.tree import TokenTree
from draftwood.core.values import RoundStats, Timings, Verdict
from draftwood.testing import OracleTarget

from .conftest import PROMPTS


def run(plan, journal=None, **options):
    journal = journal or Journal(None, {})
    return {record.key: record for record in measure(plan, journal, **options)}


def test_contestants_meet_on_every_prompt_and_take_turns_to_begin():
    order = list(schedule(["a", "b", "c"], prompts=2, repetitions=2))
    assert len(order) == len(set(order)) == 12
    cells = [order[i : i + 3] for i in range(0, 12, 3)]
    assert all(len({(r, p) for r, p, _ in cell}) == 1 for cell in cells)
    assert [cell[0] for cell in cells] == [(0, 0, "a"), (0, 1, "b"), (1, 0, "b"), (1, 1, "c")]


def test_equal_targets_are_loaded_once_and_plain_decoding_is_added(pipeline, small_target):
    names = [each.name for each in load_contestants([pipeline("one"), pipeline("two", 8)])]
    assert names == ["plain", "one", "two"]
    assert small_target == ["small"]


def test_other_targets_are_loaded_and_have_a_plain_decoding_of_their_own(pipeline, small_target):
    other = pipeline("two", extra="runtime: {dtype: bfloat16}\n")
    found = load_contestants([pipeline("one"), other])
    assert {each.name: each.plain for each in found} == {
        "plain": "plain",
        "one": "plain",
        "plain-2": "plain-2",
        "two": "plain-2",
    }
    assert len(small_target) == 2


def test_another_temperature_shares_the_target_and_not_the_plain_decoding(tmp_path, small_target):
    from .conftest import SPEC

    for name, more in (("cold", ""), ("warm", ", temperature: 0.9")):
        text = SPEC % 4
        (tmp_path / f"{name}.yaml").write_text(text.replace("tokens: 12", f"tokens: 12{more}"))
    found = load_contestants([str(tmp_path / "cold.yaml"), str(tmp_path / "warm.yaml")])
    assert [each.name for each in found] == ["plain", "plain-2", "cold", "warm"]
    assert small_target == ["small"]
    assert all(each.parity for each in found)  # match keeps a seed's text


def test_a_plain_pipeline_given_is_the_plain_decoding(tmp_path, pipeline):
    (tmp_path / "mine.yaml").write_text(
        "target: {model: small}\ngeneration: {max_new_tokens: 12}\n"
    )
    found = load_contestants([pipeline("one"), str(tmp_path / "mine.yaml")])
    assert [(each.name, each.plain) for each in found] == [("mine", "mine"), ("one", "mine")]


def test_settings_apply_before_anything_loads(pipeline, small_target):
    with pytest.raises(ConfigError, match="max_nodes"):
        load_contestants([pipeline("one")], ["tree.max_node=3"])
    assert small_target == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"names": ("hf-beam",)}, "choices: hf-generate, hf-prompt-lookup, hf-assisted"),
        ({"names": ("hf-assisted",)}, "must be given together"),
        ({"assistant": "some/model"}, "must be given together"),
    ],
)
def test_baselines_that_cannot_be_are_refused(options, message):
    with pytest.raises(RequestError, match=message):
        Baselines(**options)


def test_a_target_that_is_no_hf_model_has_no_hf_baseline(lined_up):
    with pytest.raises(RequestError, match="not a OracleTarget"):
        lined_up("one", baselines=Baselines(("hf-generate",)))


def test_a_record_adds_up(lined_up):
    plan = Plan(lined_up("one", "two"), PROMPTS)
    for (name, _, _), record in run(plan).items():
        rounds = record.rounds
        assert len(record.tokens) == 12 == 1 + sum(rounds.committed)
        assert record.text.startswith("uvwx" if record.prompt == "other" else "")
        assert 0 < record.first_seconds < record.seconds
        assert sum(record.timings.values()) <= record.seconds
        assert sum(rounds.seconds) + record.timings["prefill"] <= record.seconds
        nothing_to_look_up = record.prompt == "other"
        most = 0 if nothing_to_look_up else {"plain": 0, "one": 3, "two": 4}[name]
        assert max(rounds.budget) == most
        assert rounds.best == [None] * len(rounds)  # a fixed budget predicts nothing
        assert rounds.passes == [0] * len(rounds)  # a look-up runs no model


def test_what_a_proposal_took_of_its_model_is_kept_by_round(lined_up, monkeypatch):
    monkeypatch.setattr(LookupProposal, "passes", 2)
    records = run(Plan(lined_up("one"), PROMPTS[:1]))
    for (name, _, _), record in records.items():
        asked = record.rounds.drafted
        assert record.rounds.passes == [2 * drafted for drafted in asked]
        assert any(asked) is (name == "one")


def test_times_are_those_of_the_clock_given(lined_up):
    records = run(Plan(lined_up("one"), PROMPTS[:1]))
    plain = records["plain", "short", 0]
    # Each stage of a round reads the clock once more, a quarter of a second apart.
    assert plain.seconds % 0.25 == 0
    assert plain.seconds > 11 * 4 * 0.25


def test_more_repetitions_have_other_seeds_the_same_for_all(lined_up):
    records = run(Plan(lined_up("one"), PROMPTS[:1], repeat=2, seed=5))
    assert {(r.contestant, r.repetition, r.seed) for r in records.values()} == {
        (name, repetition, 5 + repetition) for name in ("plain", "one") for repetition in (0, 1)
    }


def test_what_a_journal_holds_is_not_measured_again(lined_up, tmp_path):
    plan = Plan(lined_up("one"), PROMPTS)
    header = plan.header({"cores": 2})
    journal = Journal(tmp_path / "j", header)
    running = measure(plan, journal)
    first = [next(running) for _ in range(2)]
    running.close()
    resumed = run(plan, Journal(tmp_path / "j", header))
    assert len(resumed) == len(plan) - 2
    assert not {record.key for record in first} & set(resumed)
    assert run(plan, Journal(tmp_path / "j", header)) == {}


def test_a_prompt_without_room_is_refused_before_measuring(lined_up):
    plan = Plan(lined_up("one"), [*PROMPTS, evolve(PROMPTS[0], id="huge", content="a" * 200)])
    with pytest.raises(RequestError, match="prompt huge: 200 tokens, and the target of plain"):
        run(plan)


def test_a_benchmark_given_more_repetitions_is_the_same_and_other_prompts_are_not(lined_up):
    contestants = lined_up("one")
    header = Plan(contestants, PROMPTS).header({})
    assert Plan(contestants, PROMPTS, repeat=3).header({}) == header
    assert Plan(contestants, PROMPTS[:2]).header({}) != header
    assert Plan(contestants, PROMPTS, seed=1).header({}) != header


def stats_of(parents, accepted):
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    tree = TokenTree.from_lists(list(range(len(parents))), parents, depths, [0.0] * len(parents))
    verdict = Verdict(tuple(accepted), 99)
    count = len(accepted) - 1
    return RoundStats(0, 0, 9, True, 5, tree.nodes, count, count + 1, tree, verdict, Timings())


@pytest.mark.parametrize(
    ("accepted", "seconds", "best"),
    [
        ([0], [1.0, 1.1, 1.2, 1.3, 1.4], 0),  # nothing was accepted: nothing should be verified
        ([0, 1, 3], [1.0, 1.1, 1.2, 1.3, 1.4], 3),  # the rest of the tree was in vain
        ([0, 1, 3], [1.0, 1.1, 1.2, 9.0, 9.0], 1),  # the third node was too dear
        ([0, 4], [1.0, 1.0, 1.0, 1.0, 1.0], 4),
    ],
)
def test_the_best_budget_in_hindsight(accepted, seconds, best):
    assert best_in_hindsight(stats_of([-1, 0, 0, 1, 0], accepted), seconds) == best


def lying(contestant, tokens):
    """The same contestant saying something else."""
    return evolve(contestant, decode=lambda ids, seed: Decoded(tuple(tokens), 1.0, 0.5, 1))


def probs(gap):
    """Token 1 over token 2 by `gap` logits, always."""
    import math

    return lambda prefix: [0.1, math.exp(gap), 1.0, 0.1]


@pytest.mark.parametrize(("gap", "broken"), [(1e-12, False), (0.5, True)])
def test_a_difference_shows_the_targets_margin_and_is_excused_by_rounding_only(
    lined_up, gap, broken
):
    target = OracleTarget(4, probs(gap))
    plain, one = (evolve(each, target=target) for each in lined_up("one"))
    contestants = [lying(plain, [1, 1, 1]), lying(one, [1, 2, 1])]
    prompts = [evolve(PROMPTS[0], content="abc")]
    plan = Plan(contestants, prompts)
    (found,) = differences(plan, run(plan))
    assert (found.contestant, found.position, found.broken) == ("one", 1, broken)
    assert found.margin == pytest.approx(gap, abs=1e-12)


def test_a_text_that_only_ends_earlier_has_no_margin_and_no_excuse(lined_up):
    plain, one = lined_up("one")
    plan = Plan([lying(plain, [1, 1, 1]), lying(one, [1, 1])], PROMPTS[:1])
    (found,) = differences(plan, run(plan))
    assert (found.position, found.margin, found.broken) == (2, None, True)


def test_equal_texts_have_no_difference(lined_up):
    plan = Plan(lined_up("one", "two"), PROMPTS, repeat=2)
    assert differences(plan, run(plan)) == []


def test_bounds_are_of_full_precisions_only():
    assert {str(dtype) for dtype in ROUNDING_MARGINS} == {"torch.float64", "torch.float32"}
