"""Recorded rounds are those that the engine runs."""

import random

import pytest
from bench.conftest import ALPHABET

from draftwood.core.build import load_pipeline
from draftwood.core.engine import Engine
from draftwood.core.errors import RequestError
from draftwood.core.tree import TokenTree
from draftwood.plugins.controllers.fixed import Fixed
from draftwood.plugins.controllers.options import FixedOptions, RooflineOptions
from draftwood.plugins.controllers.roofline import Roofline
from draftwood.plugins.trees.best_first import BestFirst
from draftwood.plugins.trees.options import BestFirstOptions, SampledOptions
from draftwood.plugins.trees.sampled import Sampled
from studies.budget.recording import Parts, path_of, record
from studies.budget.walking import ControllerWalk, walk_fixed

from .texts import priced


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
    run, rounds = engine.open(request), []
    while run.finish_reason is None:
        (step,) = engine.step([run])
        if step.stats is not None:
            rounds.append(step.stats)
    return rounds


@pytest.mark.parametrize("temperature", [0.0, 1.5])
@pytest.mark.parametrize("nodes", [0, 1, 4, 16])
def test_a_fixed_walk_equals_the_engines_rounds(recorded, temperature, nodes):
    parts, request, text = recorded(temperature)
    rounds = decoded(parts, request, Fixed(FixedOptions(nodes=nodes)))
    walk = walk_fixed(text, priced(), nodes)
    assert walk.budgets == tuple(stats.budget for stats in rounds)
    assert walk.tokens == sum(stats.committed for stats in rounds) == 39
    if nodes == 16:
        assert sum(stats.accepted for stats in rounds) > 5
        assert walk.budgets != walk_fixed(text, priced(), 4).budgets


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_controller_walk_equals_the_engines_rounds(recorded, temperature):
    """With the nominal clock, so that times change no decision."""
    parts, request, text = recorded(temperature)
    roofline = Roofline(RooflineOptions(clock="nominal"))
    rounds = decoded(parts, request, roofline)
    machine = roofline.init(parts.target.costs(lambda: 0.0))
    walk = ControllerWalk(roofline, machine, priced()).walk(text)
    assert walk.budgets == tuple(stats.budget for stats in rounds)
    assert len(set(walk.budgets)) > 1


def test_drawn_trees_are_refused(recorded, pipeline):
    parts, request, _ = recorded(1.0)
    drawn = Parts(parts.target, parts.drafter, Sampled(SampledOptions()), parts.verifier, parts.own)
    with pytest.raises(RequestError, match="cannot"):
        record(drawn, request, "p", random.Random(0))


def test_a_path_ends_where_the_text_leaves_the_tree():
    tree = TokenTree.from_lists([0, 1, 2, 3], [-1, 0, 1, 0], [0, 1, 2, 1], [0.0, -0.1, -0.2, -3.0])
    assert path_of(tree, [1, 2, 9]) == (0, 1, 2)
    assert path_of(tree, [3, 2]) == (0, 3)
    assert path_of(tree, [7]) == path_of(tree, []) == (0,)
