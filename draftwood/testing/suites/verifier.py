"""The contract of every verifier."""

from typing import Any, ClassVar

import pytest
import torch
from attrs import evolve
from hypothesis import strategies as st

from draftwood.core.draws import Draws
from draftwood.core.engine import Engine, Request
from draftwood.core.errors import NonFiniteLogits
from draftwood.core.interfaces import Verifier
from draftwood.core.randomness import Seeded
from draftwood.core.registry.plugin import Kind
from draftwood.plugins.verifiers.match import Match
from draftwood.testing import strategies
from draftwood.testing.decisions import DecisionCase, too_many_near_ties
from draftwood.testing.oracle import OracleTarget
from draftwood.testing.suites.base import Suite
from draftwood.testing.toy_pipelines import (
    FILTERS,
    PROMPT,
    ToyPipeline,
    extreme_shapes,
    trees_with,
)
from draftwood.testing.toys import VOCAB, toy_target


class VerifierSuite(Suite):
    """The output distribution is the target's, for every kind of tree that the traits declare.

    For a verifier with a `reference`, the reference is enumerated, and their decisions are
    compared.

    Attributes:
        tokens: Length of the texts that are decoded.
    """

    kind: ClassVar[Kind] = Kind.VERIFIER
    tokens: ClassVar[int] = 12

    @pytest.fixture(autouse=True)
    def _skip_on_another_device(self) -> None:
        devices = self.traits.devices
        if devices is not None and "cpu" not in devices:
            pytest.skip(f"runs on {', '.join(sorted(devices))}; the toys are on the CPU")

    def test_it_declares_what_it_verifies(self) -> None:
        assert self.traits.draws
        assert self.traits.draws <= frozenset(Draws)

    def test_the_output_distribution_is_the_targets(self) -> None:
        """By enumeration, over drafters, trees, budgets, temperatures, filters and penalties."""
        self.search(self._toy_pipelines(), lambda toy: toy.check(verifier=self._enumerable()))

    @pytest.mark.parametrize("draws", list(Draws))
    def test_the_output_distribution_is_the_targets_in_extreme_shapes(self, draws: Draws) -> None:
        """By enumeration: deep, wide, repeated, late and tied toys, with and without a penalty."""
        if draws not in self.traits.draws:
            pytest.skip(f"does not verify {draws.value} trees")
        tree = trees_with([draws])[0]
        for shape in extreme_shapes(draws):
            for seed, temperature in enumerate((1.0, 0.0)):
                toy = ToyPipeline(tree=tree, temperature=temperature, seed=seed, shape=shape)
                evolve(toy, penalty=seed == 0).check(verifier=self._enumerable())

    def test_no_random_number_is_drawn_twice_in_a_long_text(self) -> None:
        for tree in trees_with(self.traits.draws):
            ToyPipeline(tree=tree).decode(100, verifier=self._enumerable())

    def test_it_decides_as_its_reference_does(self) -> None:
        """Except in near ties, which are rare in a small vocabulary."""
        if self.build().reference is None:
            pytest.skip("has no reference: it takes its draws from a Randomness itself")
        verdicts = []

        def check(case: DecisionCase) -> None:
            verifier = self.build().bind(toy_target())
            ours, theirs = case.judged([verifier, verifier.reference])
            assert ours.near_ties or ours == theirs, case
            verdicts.append(ours)

        self.search(self._decisions(), check)
        near_ties = sum(verdict.near_ties > 0 for verdict in verdicts)
        assert not too_many_near_ties(near_ties, len(verdicts))

    def test_at_temperature_zero_text_is_the_argmax(self) -> None:
        def check(toy: ToyPipeline) -> None:
            evolve(toy, temperature=0.0).check(verifier=self._enumerable())

        self.search(self._toy_pipelines(), check)

    def test_without_drafts_it_draws_from_the_target(self) -> None:
        for seed in range(min(4, self.examples)):
            target = toy_target(seed)
            engines = (Engine(target, Match()), Engine(target, self.build()))
            texts = [_text(engine, ToyPipeline(), seed, self.tokens) for engine in engines]
            assert not self.traits.seed_parity or texts[0] == texts[1]

    def test_seed_parity_gives_plain_decodings_tokens(self) -> None:
        if not self.traits.seed_parity:
            pytest.skip("does not declare seed_parity")

        def check(toy: ToyPipeline) -> None:
            drafted = toy.engine(verifier=self.build())
            plain = Engine(drafted.target, self._enumerable())
            texts = [_text(engine, toy, toy.seed, self.tokens) for engine in (drafted, plain)]
            assert texts[0] == texts[1], toy

        self.search(self._toy_pipelines(), check)

    def test_logits_without_a_finite_entry_are_an_error(self) -> None:
        class Broken(OracleTarget):
            def logits(self, prefix: tuple[int, ...]) -> torch.Tensor:
                return torch.full((VOCAB,), torch.nan, dtype=torch.float64)

        engine = Engine(Broken(VOCAB, lambda prefix: [1.0] * VOCAB), self.build())
        with pytest.raises(NonFiniteLogits):
            _text(engine, ToyPipeline(), 0, 1)

    def _enumerable(self) -> Verifier:
        """A fresh verifier whose draws can be enumerated: the reference, if there is one."""
        verifier: Verifier = self.build()
        return verifier.reference or verifier

    def _toy_pipelines(self) -> Any:
        return strategies.toy_pipelines(
            trees=trees_with(self.traits.draws),
            verifiers=("match",),
            controllers=("fixed", "adversarial"),
        )

    def _decisions(self) -> Any:
        return st.builds(
            DecisionCase,
            st.sampled_from(trees_with(self.traits.draws)),
            st.sampled_from(strategies.TEMPERATURES),
            st.sampled_from(tuple(FILTERS)),
            st.booleans(),
            st.sampled_from((3, 5, 40)),
            st.booleans(),
            st.integers(0, 9999),
        )


def _text(engine: Engine, toy: ToyPipeline, seed: int, tokens: int) -> list[int]:
    options = evolve(toy.options, max_new_tokens=tokens)
    run = engine.open(Request(PROMPT, options, Seeded(seed), toy.processors))
    while run.finish_reason is None:
        engine.step([run])
    return run.new_ids
