"""The statistical tests pass an exact pipeline and fail every faulty one, on drawn text."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from attrs import evolve
from properties import faults

from draftwood.core.distributions import sampling_probs
from draftwood.core.draws import Draws
from draftwood.core.engine import Engine, Request
from draftwood.core.interfaces import NodeDistributions
from draftwood.core.options import GenerationOptions, Sampling
from draftwood.core.proposals import FactorizedProposal, Proposal, Vocabulary
from draftwood.core.randomness import Randomness, Seeded
from draftwood.core.tree import TokenTree
from draftwood.core.values import Verdict
from draftwood.plugins.controllers.fixed import Fixed
from draftwood.plugins.controllers.options import FixedOptions
from draftwood.plugins.trees.best_first import BestFirst
from draftwood.plugins.trees.options import BestFirstOptions, SampledOptions
from draftwood.plugins.trees.sampled import Sampled
from draftwood.plugins.verifiers.match import Match
from draftwood.plugins.verifiers.multi_round import MultiRound
from draftwood.plugins.verifiers.ratio import Ratio
from draftwood.plugins.verifiers.residual import ratio
from draftwood.testing import OracleDrafter, OracleTarget, RepetitionPenalty
from draftwood.testing.statistics import (
    FAMILY_ERROR,
    Binned,
    acceptance_test,
    assert_all,
    by_rank,
    by_token,
    distribution_test,
    samples_needed,
    support_test,
)
from draftwood.testing.toys import seeded

V, TEXTS, LENGTH = 5, 250, 16


@cache
def _probs_after(last: int) -> tuple[float, ...]:
    """Depends on the last token alone, so that the same distributions occur often."""
    rng = seeded("flat", last)
    weights = [0.2 + rng.random() for _ in range(V)]
    weights[(last + 1) % V] = 0.0
    return tuple(weights)


def _propose(prefix: tuple[int, ...], sampling: Sampling) -> Proposal:
    """The same sharp distributions for every text, some of them on impossible tokens."""
    logits = torch.zeros(2, V, dtype=torch.float64)
    for depth in range(2):
        logits[depth, 2 + depth] = 4.0
        logits[depth, 1 + depth] = 3.0
    return FactorizedProposal(logits, sampling, Vocabulary(V))


def decode(
    options: GenerationOptions,
    rule: Any,
    tree: Any,
    kind: type[Engine] = Engine,
    processors: tuple[Any, ...] = (),
    randomness: Callable[[int], Randomness] = Seeded,
) -> tuple[torch.Tensor, list[int], list[int]]:
    """Many short texts: (n, V) distributions of their tokens, the tokens, and their positions."""
    target = OracleTarget(V, lambda prefix: _probs_after(prefix[-1]))
    right = Engine(target, rule, OracleDrafter(_propose), tree, Fixed(FixedOptions(nodes=4)))
    engine = faults.as_engine(kind, right)
    rows, tokens, places = [], [], []
    for seed in range(TEXTS):
        request = Request(
            (0,), evolve(options, max_new_tokens=LENGTH), randomness(seed), processors
        )
        run = engine.open(request)
        while run.finish_reason is None:
            engine.step([run])
        for at in range(1, len(run.ids)):
            scores = target.logits(tuple(run.ids[:at]))[None]
            for processor in processors:
                scores = processor(torch.tensor([run.ids[:at]]), scores)
            rows.append(sampling_probs(scores[0], options.sampling))
            tokens.append(run.ids[at])
            places.append(at - 1)
    return torch.stack(rows), tokens, places


def check(probs: torch.Tensor, tokens: list[int], places: list[int]) -> None:
    impossible = int((probs.gather(1, torch.tensor(tokens)[:, None]) <= 0).sum())
    named = by_token(probs, tokens, range(V - 1))
    before = [tokens[i - 1] if place else -1 for i, place in enumerate(places)]
    assert_all(
        [
            support_test(impossible, len(tokens)),
            distribution_test(by_rank(probs, tokens), name="by rank"),
            distribution_test(named, name="by token"),
            distribution_test(named, places, "by position"),
            distribution_test(named, before, "pairs"),
        ]
    )


class OneStream(Seeded):
    """Drafter and verifier draw from one stream, which restarts at every decision."""

    def stream(self, name: str) -> "OneStream":
        return self

    def key(self, position: int, draw: int = 0) -> int:
        return super().key(0, 0)


class Inclusive(Seeded):
    """u = 0 occurs, and the comparison accepts at it."""

    def stream(self, name: str) -> "Inclusive":
        return Inclusive(self.seed, f"{self.name}/{name}")

    def accept(self, probability: float, position: int, draw: int = 0) -> bool:
        u = self.uniform(position, draw)
        return (0.0 if u < 0.05 else u) <= probability


class ArgmaxDrafts(faults.Declares):
    """Drafts are argmaxes, declared as drawn from the softmax."""

    def grow(self, anchor: int, proposal: Any, *rest: Any) -> TokenTree:
        return super().grow(anchor, evolve(proposal, sampling=Sampling(0.0)), *rest)


class DropsUnlikelyDrafts(Sampled):
    """Drops what it has drawn unless it is likely."""

    def grow(self, anchor: int, *rest: Any) -> TokenTree:
        tree = super().grow(anchor, *rest)
        return tree if tree.nodes and tree.log_rho[1] > -0.5 else TokenTree.root(anchor)


class InvertedRatio(Ratio):
    """Accepts a draft with min(1, q/p)."""

    def judge(self, distributions: NodeDistributions, tree: TokenTree, rng: Randomness) -> Verdict:
        if tree.nodes == 0 or tree.draws is Draws.DETERMINISTIC:
            return super().judge(distributions, tree, rng)
        assert tree.q is not None
        p, q, position = distributions.probs(0), tree.q[0], distributions.position(0)
        if rng.accept(ratio(q, p, tree.token_list[1]) if p[tree.token_list[1]] else 0, position):
            return Verdict(
                (0, 1), rng.categorical(distributions.probs(1), distributions.position(1))
            )
        return Verdict((0,), rng.categorical(p, position, 1))


PLAIN = GenerationOptions(temperature=1.0)
COLD = GenerationOptions(temperature=0.5, top_k=3)
CHAIN, PAIRS, BEST = (
    Sampled(SampledOptions()),
    Sampled(SampledOptions(widths=(3,))),
    BestFirst(BestFirstOptions(max_nodes=4)),
)
RIGHT: dict[str, tuple[Any, ...]] = {
    "match": (PLAIN, Match(), BEST),
    "ratio": (PLAIN, Ratio(), CHAIN),
    "ratio, filtered": (COLD, Ratio(), CHAIN),
    "multi_round": (PLAIN, MultiRound(), PAIRS),
    "penalty": (PLAIN, Match(), BEST, Engine, (RepetitionPenalty(3.0),)),
}
WRONG: dict[str, tuple[Any, ...]] = {
    "shared random stream": (PLAIN, Ratio(), CHAIN, Engine, (), OneStream),
    "raw softmax as q": (
        PLAIN,
        Ratio(),
        ArgmaxDrafts(SampledOptions(), faults.raw_softmax),
    ),
    "q not renormalised": (
        PLAIN,
        MultiRound(),
        faults.NotRenormalised(SampledOptions(widths=(4,))),
    ),
    "inclusive comparison at u = 0": (PLAIN, Ratio(), CHAIN, Engine, (), Inclusive),
    "argmax acceptance": (PLAIN, faults.ArgmaxAcceptance(), BEST),
    "bonus from p": (PLAIN, faults.BonusFromP(), CHAIN),
    "inverted ratio": (PLAIN, InvertedRatio(), CHAIN),
    "processors at the bonus only": (
        PLAIN,
        Match(),
        BEST,
        faults.ProcessorsAtTheBonus,
        (RepetitionPenalty(3.0),),
    ),
    "a cut by sampled scores": (PLAIN, Ratio(), DropsUnlikelyDrafts(SampledOptions())),
}


@pytest.mark.parametrize("name", RIGHT)
def test_an_exact_pipeline_passes(name: str) -> None:
    check(*decode(*RIGHT[name]))


@pytest.mark.parametrize("name", WRONG)
def test_a_fault_fails_on_drawn_text(name: str) -> None:
    with pytest.raises(AssertionError, match="not the target's"):
        check(*decode(*WRONG[name]))


def test_the_sample_is_large_enough_for_the_bias_it_names() -> None:
    """The test fails at exactly the smallest bias, and passes without bias."""
    bias, rng = 0.1, np.random.default_rng(0)
    count = samples_needed(bias, bins=1)
    probs = torch.full((count, 2), 0.5, dtype=torch.float64)
    for share, fails in ((0.5, False), (0.5 + bias, True)):
        tokens = (rng.random(count) > share).astype(int).tolist()
        assert (distribution_test(by_token(probs, tokens, [0])).p_value < FAMILY_ERROR) == fails


def test_p_values_of_exact_samples_are_uniform() -> None:
    rng = np.random.default_rng(1)
    probs = torch.tensor(rng.dirichlet([1.0] * 6, size=400))
    p_values = []
    for _ in range(200):
        tokens = [int(rng.choice(6, p=row)) for row in probs.numpy()]
        p_values.append(distribution_test(by_rank(probs, tokens)).p_value)
    assert 0.35 < float(np.mean(p_values)) < 0.65
    assert min(p_values) > 1e-5


def test_too_low_acceptance_fails_and_the_expected_passes() -> None:
    rng = np.random.default_rng(2)
    probabilities = rng.random(2000)
    accepted = (rng.random(2000) < probabilities).tolist()
    assert acceptance_test(accepted, probabilities.tolist()).p_value > 1e-6
    fewer = [bool(one and rng.random() < 0.8) for one in accepted]
    assert acceptance_test(fewer, probabilities.tolist()).p_value < FAMILY_ERROR


def test_equally_likely_tokens_have_different_ranks() -> None:
    probs = torch.full((4, 4), 0.25)
    binned = by_rank(probs, [0, 1, 2, 3])
    assert binned.observed.tolist() == [0, 1, 2, 3]
    assert Binned.joined([binned, binned]).expected.shape == (8, 4)
