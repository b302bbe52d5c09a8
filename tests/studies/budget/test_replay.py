"""Budgets replayed offline: what the engine would do, on rounds whose optimum is known."""

import itertools
import json
import random

import pytest

from draftwood.core.build import load_pipeline
from draftwood.core.engine import Engine
from draftwood.core.errors import RequestError
from draftwood.core.options import Sampling
from draftwood.core.proposals import Factorized, Vocabulary
from draftwood.core.tree import TokenTree
from draftwood.plugins.controllers.fixed import Fixed
from draftwood.plugins.controllers.options import FixedOptions, RooflineOptions
from draftwood.plugins.controllers.roofline import Roofline
from draftwood.plugins.controllers.roofline.prices import KNOTS, Roof
from draftwood.plugins.controllers.roofline.probing import Probe
from draftwood.plugins.controllers.roofline.table import Table
from draftwood.plugins.trees.best_first import BestFirst
from draftwood.plugins.trees.options import BestFirstOptions
from studies.budget import ablation
from studies.budget.command import JSON
from studies.budget.recording import SIZES, Parts, Round, Text, record, walk
from studies.budget.shapes import Conditionals, beam, random_tree
from studies.budget.times import Times
from studies.budget.walking import Adaptive, fixed, oracle

from .conftest import ALPHABET

torch = pytest.importorskip("torch")


def priced(per_token: float = 0.002, start: float = 0.010, **stages: float) -> Times:
    """A forward takes `start` and `per_token` for each token, on any context."""
    probes = [Probe(s, c, start + per_token * s) for c in (64, 2048) for s in (1, *KNOTS[1:], 512)]
    rest = {"draft": 0.002, "grow": ((0, 0.0),), "other": 0.001, "plain": 0.0005, **stages}
    return Times(Table.of(probes), **rest)  # type: ignore[arg-type]


def chain(length: int, share: float) -> TokenTree:
    """A path of equal tokens that each keep `share` of the mass, as the drafter has it."""
    import math

    steps = [n * math.log(share) for n in range(length + 1)]
    return TokenTree.of([1] * (length + 1), list(range(-1, length)), [*range(length + 1)], steps)


def text_of(accepted: list[int], share: float = 0.8, length: int = 16) -> Text:
    """A text whose round at token i accepts `accepted[i]` nodes of a chain."""
    count = len(accepted)
    rounds = []
    for at, nodes in enumerate(accepted):
        remaining = count - at
        tree = chain(length, share) if remaining > 1 else TokenTree.root(1)
        path = tuple(range(min(nodes, length, remaining - 1) + 1))
        rounds.append(Round(100 + at, remaining, tree, path, tree, path, {}))
    return Text("scripted", tuple(rounds))


def draws(count: int, share: float, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [next(n for n in itertools.count() if rng.random() > share) for _ in range(count)]


# -- walks over scripted rounds


def test_a_fixed_budget_costs_what_a_hand_counts():
    text, times = text_of([3, 0, 0, 0, 2, 0, 0]), priced()
    done = fixed(text, times, 2)
    # Tokens 0, 3, 4 and 7: two nodes of three, none, two of two.
    assert done.budgets == (2, 2, 2)
    assert done.tokens == 7
    assert done.seconds == pytest.approx(3 * (0.002 + 0.010 + 3 * 0.002 + 0.001))
    plain = fixed(text, times, 0)
    assert plain.budgets == (0,) * 7
    assert plain.seconds == pytest.approx(7 * (0.012 + 0.0005))


def test_the_last_token_is_a_plain_step():
    done = fixed(text_of([0]), priced(), 8)
    assert (done.tokens, done.budgets) == (1, (0,))
    assert done.seconds == pytest.approx(0.0125)


@pytest.mark.parametrize("seed", range(4))
def test_the_oracle_is_the_best_of_all_sequences_of_budgets(seed):
    text, times = text_of(draws(7, 0.6, seed), length=3), priced(per_token=0.004)

    def least(at: int) -> float:
        if at >= len(text.rounds):
            return 0.0
        each = text.rounds[at]
        options = [times.plain_step(each.context) + least(at + 1)]
        for nodes in range(each.tree.nodes + 1):
            committed = min(sum(n <= nodes for n in each.path), each.remaining)
            options.append(times.drafted(nodes, nodes, each.context) + least(at + committed))
        return min(options)

    done = oracle(text, times)
    assert done.seconds == pytest.approx(least(0))
    assert done.tokens == 7
    # Negative control: what maximises each round by itself is not always that.
    assert done.seconds <= min(fixed(text, times, n).seconds for n in range(4)) + 1e-12


def known(times: Times) -> dict:
    """Prices that are the truth, as two roofs."""
    linear = (0.010, 0.002, 0.0, 0.0, 0.0)
    return ablation.machines(Roof(linear, linear), (0.0,) * len(KNOTS), times)


@pytest.mark.parametrize("share", [0.5, 0.7, 0.9])
def test_policies_that_adapt_come_near_the_best_fixed_budget(share):
    texts = [text_of(draws(300, share, seed), share) for seed in range(4)]
    times = priced(per_token=0.001)
    linear = (0.010, 0.001, 0.0, 0.0, 0.0)
    machines = ablation.machines(Roof(linear, linear), (0.0,) * len(KNOTS), times)
    cell = ablation.cell("scripted", 1.0, texts, times, machines, RooflineOptions())
    spent = {name: ablation.seconds(walks) for name, walks in cell.walks.items()}
    assert spent["oracle"] < min(s for name, s in spent.items() if name != "oracle")
    best = spent[cell.best_fixed]
    assert spent["bastion"] < 1.04 * best
    assert spent["measured"] < 1.04 * best
    # Negative control: budgets do differ.
    assert max(spent[f"fixed-{n}"] for n in (4, 8, 16)) > 1.1 * best
    assert all(walk.tokens == 300 for walks in cell.walks.values() for walk in walks)


def test_an_overconfident_drafter_costs_those_who_believe_it():
    texts = [text_of(draws(400, 0.6, seed), share=0.95) for seed in range(3)]
    times = priced(per_token=0.002)
    linear = (0.010, 0.002, 0.0, 0.0, 0.0)
    machines = ablation.machines(Roof(linear, linear), (0.0,) * len(KNOTS), times)
    cell = ablation.cell("scripted", 1.0, texts, times, machines, RooflineOptions())
    spent = {name: ablation.seconds(walks) for name, walks in cell.walks.items()}
    assert spent["uncalibrated"] > 1.1 * spent["bastion"]


def test_what_deciding_takes_is_paid_in_each_round_that_drafts():
    text = text_of(draws(60, 0.8))
    free, dear = (
        Adaptive(Roofline(RooflineOptions()), known(times)["bastion"], times).walk(text)
        for times in (priced(), priced(control=1e-7))
    )
    assert dear.seconds - free.seconds == pytest.approx(1e-7 * len(free.budgets), rel=0.2)


def test_reports_answer_both_questions():
    times = priced()
    texts = [text_of(draws(60, 0.8, seed)) for seed in range(3)]
    cell = ablation.cell("scripted", 0.0, texts, times, known(times), RooflineOptions())
    found = ablation.report([cell], seed=0)
    assert json.loads(json.dumps(found)) == found
    shown = ablation.markdown(found, "mine")
    assert "| bastion |" in shown
    assert "of the fixed budget that happens to be best for each table" in shown
    behind = {"value": 0.9, "low": 0.88, "high": 0.93}
    ahead = {"value": 1.1, "low": 1.05, "high": 1.2}
    over = found["overall"]["bastion_over"] = dict.fromkeys(("plain", *ablation.FIXED), ahead)
    assert "faster than any single fixed budget" in ablation.said(found["overall"])
    over["fixed-8"] = behind
    found["overall"]["bastion_over_best_fixed_of_each"] = behind
    assert "not within 3%" in ablation.said(found["overall"])
    assert "slower than fixed-8" in ablation.said(found["overall"])
    over["fixed-8"] = {**behind, "high": 1.01}
    assert "within the interval" in ablation.said(found["overall"])


# -- what is recorded is what the engine would meet


@pytest.fixture
def recorded(pipeline):
    """recorded(temperature) -> (parts, request, text) of the alphabet's target."""

    def make(temperature: float = 0.0):
        loaded = load_pipeline(pipeline())
        engine = loaded.engine
        tree = BestFirst(BestFirstOptions(max_nodes=128))
        parts = Parts(
            loaded.target,
            engine.drafter,
            tree,
            engine.verifier,
            lambda t: BestFirst(BestFirstOptions(score_temperature=max(1e-9, t))),
        )
        prompt = [ALPHABET.index(c) for c in "abcdxyzabcdefgabcdexyzabcdabcdefab"]
        request = loaded.request(prompt, max_new_tokens=40, temperature=temperature, seed=3)
        return parts, request, record(parts, request, "p", random.Random(0))

    return make


def decoded(parts: Parts, request, controller) -> list:
    engine = Engine(parts.target, parts.verifier, parts.drafter, parts.tree, controller)
    run, found = engine.open(request), []
    while run.finish_reason is None:
        (step,) = engine.step([run])
        if step.stats is not None:
            found.append(step.stats)
    return found


@pytest.mark.parametrize("temperature", [0.0, 1.5])
@pytest.mark.parametrize("nodes", [0, 1, 4, 16])
def test_a_walk_with_a_fixed_budget_is_what_the_engine_does(recorded, temperature, nodes):
    parts, request, text = recorded(temperature)
    rounds = decoded(parts, request, Fixed(FixedOptions(nodes=nodes)))
    done = fixed(text, priced(), nodes)
    assert done.budgets == tuple(stats.budget for stats in rounds)
    assert done.tokens == sum(stats.committed for stats in rounds) == 39
    if nodes == 16:
        assert sum(stats.accepted for stats in rounds) > 5
        assert done.budgets != fixed(text, priced(), 4).budgets


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_walk_with_a_controller_is_what_the_engine_does(recorded, temperature):
    """With prices that no time changes, so that both decide on the same grounds."""
    parts, request, text = recorded(temperature)
    roofline = Roofline(RooflineOptions(clock="nominal"))
    rounds = decoded(parts, request, roofline)
    machine = roofline.init(parts.target.costs(lambda: 0.0))
    done = Adaptive(roofline, machine, priced()).walk(text)
    assert done.budgets == tuple(stats.budget for stats in rounds)
    assert len(set(done.budgets)) > 1


def test_drawn_trees_are_refused(recorded, pipeline):
    from draftwood.plugins.trees.options import SampledOptions
    from draftwood.plugins.trees.sampled import Sampled

    parts, request, _ = recorded(1.0)
    drawn = Parts(parts.target, parts.drafter, Sampled(SampledOptions()), parts.verifier, parts.own)
    with pytest.raises(RequestError, match="cannot"):
        record(drawn, request, "p", random.Random(0))


# -- trees of equal size


def distributions(depth: int = 5, width: int = 40) -> Factorized:
    logits = 3 * torch.randn(depth, width, generator=torch.Generator().manual_seed(0))
    return Factorized(logits, Sampling(1.0), Vocabulary(width))


class ByPath(Factorized):
    """The same without a table: conditionals are asked for path by path."""

    def table(self, k: int) -> None:
        return None


@pytest.mark.parametrize("nodes", SIZES)
def test_random_trees_and_beams_have_the_size_and_the_distributions_of_the_others(nodes):
    proposal = distributions()
    by_path = ByPath(proposal.logits, proposal.sampling, proposal.vocabulary)
    for grow in (beam, lambda *given: random_tree(*given, random.Random(1))):
        tree = grow(0, Conditionals(proposal), nodes, 5).validate()
        assert tree.nodes == nodes
        assert torch.equal(tree.tokens, grow(0, Conditionals(by_path), nodes, 5).tokens)
    best = BestFirst(BestFirstOptions()).grow
    from draftwood.core.values import Limits

    whole = best(0, proposal, Limits(nodes), lambda g: True, None)
    for tree in (beam(0, Conditionals(proposal), nodes, 5),):
        assert float(tree.expected_tokens()[-1]) <= float(whole.expected_tokens()[-1]) + 1e-12


def test_a_walk_ends_where_the_text_leaves_the_tree():
    tree = TokenTree.of([0, 1, 2, 3], [-1, 0, 1, 0], [0, 1, 2, 1], [0.0, -0.1, -0.2, -3.0])
    assert walk(tree, [1, 2, 9]) == (0, 1, 2)
    assert walk(tree, [3, 2]) == (0, 3)
    assert walk(tree, [7]) == walk(tree, []) == (0,)


# -- the command


def test_the_command_prints_what_it_documents(draftwood, pipeline, prompt_file, tmp_path):
    arguments = ("--prompts", prompt_file, "--tokens", "12", "--repeats", "1")
    ran = draftwood(
        "ablate", "budget", pipeline(), *arguments, "--json", "--out", str(tmp_path / "out")
    )
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert {key for key in JSON if "." not in key} == set(found)
    (each,) = found["pipelines"].values()
    assert [cell["temperature"] for cell in each["cells"]] == [0.0, 0.7, 1.0]
    assert set(each) == {"times", "cells", "overall", "policies"}
    assert (tmp_path / "out" / "budget.md").read_text().startswith("## Budgets of")
    assert json.loads((tmp_path / "out" / "budget.json").read_text()) == found


def test_what_cannot_be_replayed_is_refused_before_weights_load(draftwood, pipeline, small_target):
    ran = draftwood("ablate", "budget", pipeline(extra="\n"), "--set", "verifier.use=ratio")
    assert ran.code == 2
    assert "verifier" in ran.err
    assert draftwood("ablate", "budget", "plain").code == 2
    assert draftwood("ablate", "budget", pipeline(), "--temperature", "inf").code == 2
    assert small_target == []
