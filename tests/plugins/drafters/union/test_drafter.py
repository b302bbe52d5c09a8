"""union leaves out passes that do not pay: what is promised, what asking adds, and the text."""

import itertools
import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftwood.core.engine import Engine, Request, Run
from draftwood.core.hf import load_target
from draftwood.core.interfaces import BudgetController, Target
from draftwood.core.options import GenerationOptions
from draftwood.core.randomness import Seeded
from draftwood.core.tree import TokenTree
from draftwood.core.values import Limits, RoundContext
from draftwood.plugins.drafters.dflash.drafter import DFlash
from draftwood.plugins.drafters.eagle3.drafter import Eagle3
from draftwood.plugins.drafters.ngram.drafter import Ngram
from draftwood.plugins.drafters.options import (
    DFlashOptions,
    Eagle3Options,
    NgramOptions,
    UnionOptions,
)
from draftwood.plugins.drafters.union.drafter import SourceSession, Union, UnionSession
from draftwood.plugins.drafters.union.marginal_gain import (
    BAND_EDGES,
    REPROBE_ROUNDS,
    MarginalGain,
    expected_tokens,
)
from draftwood.plugins.trees.best_first import BestFirst
from draftwood.plugins.trees.options import BestFirstOptions
from draftwood.plugins.verifiers.match import Match

FIXTURES = Path(__file__).parents[3] / "fixtures"
RECORDS = json.loads((FIXTURES / "zlab/dflash/expected.json").read_text())


def table(seed: int, width: int) -> Any:
    """Distributions over `width` tokens, one per path."""

    @cache
    def following(path: tuple[int, ...]) -> list[tuple[int, float]]:
        place = sum((token + 1) * (width + 1) ** i for i, token in enumerate(path))
        generator = torch.Generator().manual_seed(1_000_003 * seed + place)
        probs = (2.0 * torch.randn(width, generator=generator, dtype=torch.float64)).log_softmax(0)
        pairs = enumerate(probs.tolist())
        return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))

    return following


@given(
    seed=st.integers(0, 50),
    width=st.integers(1, 3),
    depth=st.integers(0, 3),
    nodes=st.integers(0, 9),
)
def test_expected_tokens_are_the_mass_of_the_best_paths(
    seed: int, width: int, depth: int, nodes: int
) -> None:
    following = table(seed, width)
    chances = []
    for length in range(1, depth + 1):
        for path in itertools.product(range(width), repeat=length):
            steps = (dict(following(path[:i]))[token] for i, token in enumerate(path))
            chances.append(math.exp(sum(steps)))
    expected = 1.0 + sum(sorted(chances, reverse=True)[:nodes])
    assert expected_tokens(following, depth, nodes) == pytest.approx(expected)


def test_skipped_sources_are_reprobed_after_12_rounds() -> None:
    low, high = 1.0, BAND_EDGES[-1] + 1.0
    gain = MarginalGain()
    assert gain.pays(high, 100.0)
    gain = gain.learn(high, 0.2)
    assert gain.pays(high, 0.1)
    assert not gain.pays(high, 0.3)
    # A look-up that promises little says nothing of what was seen where it promised much.
    assert gain.pays(low, 100.0)
    gain = gain.learn(low, 2.0)
    assert gain.pays(low, 1.9)
    # Between them, what the lower one left is the most that can be left.
    assert gain.pays(2.0, 1.9)
    assert not gain.pays(2.0, 2.1)
    for _ in range(REPROBE_ROUNDS):
        assert not gain.pays(high, 0.3)
        gain = gain.after_skip(high)
    assert gain.pays(high, 0.3)
    assert not gain.learn(high, 0.2).pays(high, 0.3)


class Priced(BudgetController[None, None]):
    """Sixteen nodes, and one price for a pass. told: how many it heard of before each choice."""

    def __init__(self, price: float) -> None:
        self.price = price
        self.told: list[int] = []

    def init(self, costs: object) -> None:
        return None

    def open(self) -> None:
        return None

    def before_draft(self, ctx: object, state: object) -> Limits:
        return Limits(16, pass_price=self.price)

    def choose(self, tree: TokenTree, ctx: RoundContext, state: object) -> int:
        self.told.append(ctx.passes)
        return tree.nodes


@cache
def shared_target() -> Target:
    return load_target(FIXTURES / "zlab/target", device="cpu", dtype="float32")


def union() -> Union:
    dflash = DFlashOptions(FIXTURES / "zlab/dflash")
    return Union(UnionOptions.of(ngram=NgramOptions(min_ngram=1), dflash=dflash))


def decoded(
    prompt: list[int], price: float, temperature: float = 0.0
) -> tuple[list[int], list[int]]:
    """(new tokens, passes of each round)."""
    engine = Engine(shared_target(), Match(), union(), BestFirst(BestFirstOptions()), Priced(price))
    options = GenerationOptions(max_new_tokens=48, temperature=temperature, eos_token_id=())
    run = engine.open(Request(tuple(prompt), options, Seeded(3)))
    passes = []
    while run.finish_reason is None:
        step = engine.step([run])[0]
        if step.stats is not None and step.stats.drafted:
            passes.append(step.stats.passes)
    return run.new_ids, passes


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_text_does_not_depend_on_skipped_sources(temperature: float) -> None:
    prompt = RECORDS[0]["prompt"]
    texts, passes = zip(
        *(decoded(prompt, price, temperature) for price in (0.0, 0.3, 1e9)), strict=True
    )
    assert texts[0] == texts[1] == texts[2]
    assert set(passes[0]) == {1}  # without a price all sources run
    # With one that nothing pays, each band is probed once at first, and seldom again.
    assert 0 < sum(passes[2]) < 0.6 * len(passes[2])
    assert sum(passes[2]) <= sum(passes[1])


def test_gain_is_what_all_sources_expect_beyond_the_lookups() -> None:
    drafter = union()
    engine = Engine(shared_target(), Match(), drafter, BestFirst(BestFirstOptions()), Priced(1e9))
    options = GenerationOptions(max_new_tokens=24, temperature=0.0, eos_token_id=())
    run = engine.open(Request(tuple(RECORDS[0]["prompt"]), options, Seeded(3)))
    while run.finish_reason is None:
        engine.step([run])
    assert isinstance(run.draft, UnionSession)
    added = [mean for mean in run.draft.gain.means if mean is not None]
    # Where the look-up promises nothing, a block drafter is expected to give some tokens.
    assert added
    assert 0.3 < max(added) < 7.0


def test_skipped_sources_receive_every_token_once_in_order() -> None:
    taken: list[int] = []

    class Taking:
        def commit(self, tokens: Any, features: torch.Tensor) -> None:
            assert features[:, 0].tolist() == [float(token) for token in tokens]
            taken.extend(tokens)

        def fork(self) -> "Taking":
            return self

    source = SourceSession(Taking(), slice(1, 3), lookup=False)  # type: ignore[arg-type]
    session = UnionSession([source], None, None)  # type: ignore[arg-type]

    def commit(tokens: list[int]) -> None:
        column = torch.tensor(tokens, dtype=torch.float32)
        session.commit(tokens, torch.stack([-column, column, column], 1))

    commit([5, 6, 7])
    commit([8])
    assert taken == []
    twin = source.fork()
    source.settle()
    source.settle()
    assert taken == [5, 6, 7, 8]
    twin.settle()  # a fork owes what the session owed
    assert taken == [5, 6, 7, 8] * 2
    for start in range(0, 600, 100):
        commit(list(range(start, start + 100)))
    assert taken[8:] == list(range(600))  # pending tokens are limited


def test_rounds_count_the_passes_of_the_drafters_model() -> None:
    """A look-up has none, a block one, a plain step none; whoever chooses a budget knows."""
    prompt = RECORDS[0]["prompt"]
    target = shared_target()

    def passes(engine: Engine) -> set[int]:
        options = GenerationOptions(max_new_tokens=12, eos_token_id=())
        run: Run = engine.open(Request(tuple(prompt), options, Seeded(0)))
        found, drafted = set(), []
        while run.finish_reason is None:
            step = engine.step([run])[0]
            if step.stats is not None:
                found.add(step.stats.passes)
                drafted += [step.stats.passes] * step.stats.drafted
        assert getattr(engine.controller, "told", []) == drafted
        return found

    def engine(drafter: Any) -> Engine:
        return Engine(target, Match(), drafter, BestFirst(BestFirstOptions()), Priced(0.0))

    assert passes(Engine(target, Match())) == {0}
    assert passes(engine(Ngram(NgramOptions(min_ngram=1)))) == {0}
    assert 1 in passes(engine(DFlash(DFlashOptions(FIXTURES / "zlab/dflash"))))
    eagle = Eagle3(Eagle3Options(FIXTURES / "speculators/eagle3", max_depth=3))
    assert 3 in passes(engine(eagle))
