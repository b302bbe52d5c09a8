"""Methods compared on toy texts: relations that hold in every round, reports and tuning."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from draftwood.core.engine import Engine, Request
from draftwood.core.errors import RequestError
from draftwood.core.interfaces import Drafter
from draftwood.core.options import GenerationOptions, Sampling
from draftwood.core.proposals import FactorizedProposal, MixtureProposal, Proposal
from draftwood.core.randomness import Seeded
from draftwood.core.tree import TokenTree
from draftwood.core.values import Limits
from draftwood.plugins.trees.branches import Branches, Lottery
from draftwood.plugins.trees.options import LotteryOptions, SampledOptions
from draftwood.plugins.trees.sampled import Sampled
from draftwood.plugins.verifiers.match import Match
from draftwood.testing import OracleDrafter, toy_drafter, toy_target
from draftwood.testing.toys import toy_mixtures
from studies.dblast.figures import draw_gains
from studies.dblast.methods import (
    ARGMAX,
    BRANCHES,
    COMPARISONS,
    COVERING,
    DRAWN,
    LOTTERY,
    METHODS,
    MIXTURE,
    MIXTURE_TREE,
    PLAIN_TREE,
    TARGET,
    label,
    lottery,
    method_trees,
)
from studies.dblast.replay import Replay, RoundAcceptance, merge
from studies.dblast.report import Setting, SettingRounds, report
from studies.dblast.tables import markdown
from studies.dblast.tuning import candidate_trees, curve

VOCAB, DEPTH = 5, 3
SAMPLING = ("temperature", "top_k", "top_p")
PROMPTS = ((0, 1), (2,), (3, 3, 4))


def request(prompt: tuple[int, ...] = PROMPTS[0], seed: int = 0, **changes: Any) -> Request:
    options = GenerationOptions(
        max_new_tokens=30, eos_token_id=(), **{"temperature": 1.0, **changes}
    )
    return Request(prompt, options, Seeded(seed))


def mixtures(branches: int = 3, kind: Any = "distinct") -> OracleDrafter:
    return toy_mixtures(branches, kind, 1, DEPTH, VOCAB)


def first_branch(drafter: OracleDrafter) -> OracleDrafter:
    """The independent drafter that the first branch of each mixture is."""

    def propose(prefix: tuple[int, ...], sampling: Sampling) -> Proposal:
        found = drafter._propose(prefix, sampling)
        assert isinstance(found, MixtureProposal)
        return FactorizedProposal(found.logits[0], sampling, found.vocabulary)

    return OracleDrafter(propose)


def texts(
    plain: Drafter, mixture: Drafter, seeds: int = 3, **changes: Any
) -> dict[str, list[RoundAcceptance]]:
    replay = Replay(toy_target(1, VOCAB), [plain, mixture], method_trees(2))
    return {
        str(seed): replay.rounds(request(PROMPTS[seed % 3], seed, **changes))
        for seed in range(seeds)
    }


def test_replayed_text_equals_plain_decoding() -> None:
    """Rounds must be those of a text that the target writes."""
    target = toy_target(1, VOCAB)
    replay = Replay(
        target, [toy_drafter("factorized", 1, DEPTH, VOCAB), mixtures()], method_trees(1)
    )
    for seed in range(4):
        decoded = []
        for engine in (replay._engine, Engine(target, Match())):
            run = engine.open(request(seed=seed))
            while run.finish_reason is None:
                engine.step([run])
            decoded.append(run.new_ids)
        assert decoded[0] == decoded[1]


@pytest.mark.parametrize("changes", [{}, {"temperature": 1.5, "top_k": 3, "top_p": 0.8}])
def test_rules_are_ordered_as_in_theory_in_every_round(changes: dict[str, Any]) -> None:
    every = texts(toy_drafter("factorized", 1, DEPTH, VOCAB), mixtures(4), **changes)
    rounds = [each for text in every.values() for each in text]
    assert len(rounds) > 20

    def accepted(each: RoundAcceptance, name: str, rule: str) -> float:
        return each.accepted[label((name, rule))]

    for each in rounds:
        assert all(0.0 <= count <= DEPTH for count in each.accepted.values())
        equality = accepted(each, LOTTERY, "match")
        assert accepted(each, LOTTERY, "ratio") >= equality - 1e-12
        assert accepted(each, LOTTERY, "traversal") >= accepted(each, LOTTERY, "ratio") - 1e-12
        assert accepted(each, BRANCHES, "match") >= equality - 1e-12
        trees = (BRANCHES, PLAIN_TREE, MIXTURE_TREE)
        nodes = [each.nodes[label((name, "match"))] for name in trees]
        # Filters apply to scores: an independent distribution may have too few tokens left.
        assert nodes == [nodes[0]] * 3 if not changes else max(nodes) == nodes[0]
    # Negative control: one method under many names would pass all of the above.
    assert len({round(sum(accepted(r, *method) for r in rounds), 9) for method in METHODS}) >= 9


def test_a_mixture_of_one_branch_accepts_as_its_drafter() -> None:
    single = mixtures(1)
    for text in texts(first_branch(single), single).values():
        for each in text:
            for mixed, plain in ((LOTTERY, ARGMAX), (BRANCHES, ARGMAX), (MIXTURE_TREE, PLAIN_TREE)):
                found = each.accepted[label((mixed, "match"))]
                assert found == pytest.approx(each.accepted[label((plain, "match"))], abs=1e-12)
            assert each.notes["prior"] == [1.0]
            assert each.notes["distinct"] == [1] * DEPTH


def test_first_token_choices_have_equal_size_and_at_most_the_mass_of_the_likeliest() -> None:
    every = texts(toy_drafter("factorized", 1, DEPTH, VOCAB), mixtures(4))
    for each in (each for text in every.values() for each in text):
        first = each.notes["first"]
        assert 1 <= first <= 4
        assert {each.nodes[name] for name in COVERING} == {float(first)}
        assert each.mass[-1] == pytest.approx(1.0)
        # No choice of as many tokens is more probable than the target's most likely ones.
        assert all(each.accepted[name] <= each.mass[first - 1] + 1e-12 for name in COVERING)
        assert each.accepted[COVERING[0]] <= each.accepted[label((BRANCHES, "match"))] + 1e-12


def test_reported_first_token_mass_is_the_mean_over_rounds() -> None:
    plain, mixture = toy_drafter("factorized", 1, DEPTH, VOCAB), mixtures()
    prompts = texts(plain, mixture)
    rounds = [each for text in prompts.values() for each in text]
    (cell,) = report([SettingRounds(Setting(1.0), prompts)], seed=0)["cells"]
    found = cell["first_tokens"]
    assert found["tokens"] == pytest.approx(sum(r.notes["first"] for r in rounds) / len(rounds))
    most = sum(r.mass[r.notes["first"] - 1] for r in rounds) / len(rounds)
    covered = {name: sum(r.accepted[name] for r in rounds) / len(rounds) for name in COVERING}
    assert found["mass"] == pytest.approx({**covered, TARGET: most})
    assert all(0.1 < share < 1.0 for share in found["mass"].values())
    assert len(set(covered.values())) == len(COVERING)


def test_equal_branches_count_as_one_distinct_branch() -> None:
    twins = texts(first_branch(mixtures(2, "repeated")), mixtures(2, "repeated"))
    assert all(each.notes["distinct"] == [1] * DEPTH for text in twins.values() for each in text)


def test_lottery_enumerates_its_chains_with_their_probabilities() -> None:
    found = mixtures(4, "repeated")._propose((0, 1), Sampling(1.0))
    assert isinstance(found, MixtureProposal)
    chances = {tuple(tree.token_list[1:]): chance for chance, tree in lottery(9, found)}
    assert sum(chances.values()) == pytest.approx(1.0)
    paths = found.greedy().tolist()
    for path, chance in chances.items():
        same = [w for p, w in zip(paths, found.weights().tolist(), strict=True) if tuple(p) == path]
        assert chance == pytest.approx(sum(same))
    assert all(tree.nodes == 2 for _, tree in lottery(9, found, 2))


def test_merged_trees_keep_every_path() -> None:
    one = TokenTree.from_lists([9, 1, 2, 1], [-1, 0, 1, 0], [0, 1, 2, 1], [0.0] * 4)
    two = TokenTree.from_lists([9, 2, 1, 2], [-1, 0, 0, 2], [0, 1, 1, 2], [0.0] * 4)
    merged, places = merge(9, [one, two])
    merged.validate()
    assert merged.token_list == [9, 1, 2, 2]
    assert places == [[0, 1, 2, 1], [0, 3, 1, 2]]
    for tree, place in ((one, places[0]), (two, places[1])):
        for node in range(len(tree)):
            theirs = [tree.token_list[i] for i in tree.path(node)]
            assert [merged.token_list[i] for i in merged.path(place[node])] == theirs


def test_a_second_drafter_without_mixture_is_refused() -> None:
    plain = toy_drafter("factorized", 1, DEPTH, VOCAB)
    with pytest.raises(RequestError, match="use a dblast checkpoint"):
        texts(plain, plain)


def test_reports_contain_every_method_gain_and_setting() -> None:
    plain, mixture = toy_drafter("factorized", 1, DEPTH, VOCAB), mixtures()
    settings = [Setting(1.0), Setting(1.5, 3, 0.8)]
    cells = [
        SettingRounds(
            each,
            texts(
                plain, mixture, 9, temperature=each.temperature, top_k=each.top_k, top_p=each.top_p
            ),
        )
        for each in settings
    ]
    found = report(cells, seed=0)
    assert [cell["title"] for cell in found["cells"]] == [
        "T = 1, no filters",
        "T = 1.5, top-k 3 + top-p 0.8",
    ]
    text = markdown(found)
    for name, _ in METHODS:
        assert text.count(f"| {name} |") >= len(settings)
    for cell in found["cells"]:
        assert len(cell["gains"]) == len(COMPARISONS)
        for each in cell["gains"]:
            assert each["ratio"]["low"] <= each["ratio"]["value"] <= each["ratio"]["high"]
        assert sum(cell["branches"]["usage"]) == pytest.approx(1.0)
        assert 1.0 <= cell["branches"]["effective_in_a_round"] <= 3.0
        first = cell["first_tokens"]
        assert 1.0 < first["tokens"] <= 3.0
        assert all(share <= first["mass"][TARGET] + 1e-6 for share in first["mass"].values())
    ours = found["cells"][0]["gains"][3]
    sums = [
        sum(each.accepted[ours[side]] for rounds in cells[0].prompts.values() for each in rounds)
        for side in ("ours", "theirs")
    ]
    assert ours["ratio"]["value"] == pytest.approx(sums[0] / sums[1])
    assert label((MIXTURE, "ratio")) == ours["ours"]
    assert label((DRAWN, "ratio")) == ours["theirs"]


def test_figures_need_two_bins_of_entropy(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    gains = [{"ratio": {"value": 1.0 + n / 10}} for n in range(len(COMPARISONS))]
    bins = [{"mean": mean, "gains": gains} for mean in (0.5, 1.5)]
    path = tmp_path / "gains.svg"
    assert not draw_gains({"by_entropy": bins[:1]}, path)
    assert not path.exists()
    assert draw_gains({"by_entropy": bins}, path)
    assert "<svg" in path.read_text()


GRID = (0.0, 1.0, 3.0)


def tuned(policy: Any, rule: str) -> dict[str, Any]:
    grow = candidate_trees(policy, rule, Limits(9), GRID, 3)
    replay = Replay(toy_target(1, VOCAB), [mixtures(3)], grow)
    prompts = {str(s): replay.rounds(request(PROMPTS[s % 3], s)) for s in range(4)}
    return curve(1.0, prompts, GRID, 0)


@pytest.mark.parametrize(
    ("policy", "rule"),
    [
        (Lottery(), "ratio"),
        (Lottery(LotteryOptions(length=2)), "match"),
        (Sampled(SampledOptions()), "traversal"),
        (Branches(), "match"),
    ],
)
def test_best_z_t_is_the_highest_point_of_its_curve(policy: Any, rule: str) -> None:
    tuned_curve = tuned(policy, rule)
    values = {point["z_t"]: point["value"] for point in tuned_curve["points"]}
    assert values[tuned_curve["best"]] == max(values.values())
    assert tuned_curve["gain"]["value"] == pytest.approx(values[tuned_curve["best"]] / values[1.0])
    assert tuned_curve["rounds"] > 10
    if isinstance(policy, Lottery):
        assert len(set(values.values())) == len(GRID)


def test_equal_candidates_keep_the_trained_prior() -> None:
    equal = {str(z_t): 0.5 for z_t in GRID}
    rounds: Sequence[RoundAcceptance] = [RoundAcceptance(equal, equal, 1.0, (), {})]
    tuned_curve = curve(1.0, {"a": rounds, "b": rounds}, GRID, 0)
    assert (tuned_curve["best"], tuned_curve["gain"]["value"]) == (1.0, 1.0)
    better = evolve(rounds[0], accepted={**equal, "3.0": 0.6})
    assert curve(1.0, {"a": [better], "b": rounds}, GRID, 0)["best"] == 3.0
    with pytest.raises(RequestError, match="raise --tokens"):
        curve(1.0, {"a": []}, GRID, 0)
