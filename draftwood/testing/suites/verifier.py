"""What every verifier must hold."""

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
from draftwood.testing import strategies
from draftwood.testing.cells import FILTERS, PROMPT, TREES, Cell
from draftwood.testing.decisions import Decision
from draftwood.testing.oracle import OracleTarget
from draftwood.testing.suites.base import Suite
from draftwood.testing.toys import VOCAB, toy_target


class VerifierSuite(Suite):
    """The output distribution is the target's, for every kind of tree that the traits declare.

    Of a verifier with a `reference` the distribution is the reference's, and decision after
    decision is compared. tokens: length of the texts that are decoded."""

    kind: ClassVar[Kind] = Kind.VERIFIER
    tokens: ClassVar[int] = 12

    @pytest.fixture(autouse=True)
    def _on_this_device(self) -> None:
        devices = self.traits.devices
        if devices is not None and "cpu" not in devices:
            pytest.skip(f"runs on {', '.join(sorted(devices))}; the toys are on the CPU")

    def test_it_declares_what_it_verifies(self) -> None:
        assert self.traits.draws
        assert self.traits.draws <= frozenset(Draws)

    def test_the_output_distribution_is_the_targets(self) -> None:
        """By enumeration, over drafters, trees, budgets, temperatures, filters and penalties."""
        self.search(self._cells(), lambda cell: cell.check(verifier=self._enumerable()))

    def test_it_decides_as_its_reference_does(self) -> None:
        """Unless it says that rounding could have decided otherwise, of which nobody may make
        an excuse: few cases of a small vocabulary are near."""
        if self.build().reference is None:
            pytest.skip("has no reference: it takes its draws from a Randomness itself")
        verdicts = []

        def check(case: Decision) -> None:
            verifier = self.build().bind(toy_target())
            mine, wanted = case.judged([verifier, verifier.reference])
            assert mine.near_ties or mine == wanted, case
            verdicts.append(mine)

        self.search(self._decisions(), check)
        assert sum(verdict.near_ties > 0 for verdict in verdicts) <= max(1, len(verdicts) // 20)

    def test_at_temperature_zero_text_is_the_argmax(self) -> None:
        def check(cell: Cell) -> None:
            evolve(cell, temperature=0.0).check(verifier=self._enumerable())

        self.search(self._cells(), check)

    def test_without_drafts_it_draws_from_the_target(self) -> None:
        for seed in range(min(4, self.examples)):
            target = toy_target(seed)
            plain, mine = Engine(target, _match()), Engine(target, self.build())
            texts = [_text(engine, Cell(), seed, self.tokens) for engine in (plain, mine)]
            assert not self.traits.seed_parity or texts[0] == texts[1]

    def test_one_seed_gives_plain_decodings_tokens_if_it_says_so(self) -> None:
        if not self.traits.seed_parity:
            pytest.skip("does not declare seed_parity")

        def check(cell: Cell) -> None:
            drafted = cell.engine(verifier=self.build())
            plain = Engine(drafted.target, self._enumerable())
            texts = [_text(engine, cell, cell.seed, self.tokens) for engine in (drafted, plain)]
            assert texts[0] == texts[1], cell

        self.search(self._cells(), check)

    def test_logits_without_a_finite_entry_are_an_error(self) -> None:
        class Broken(OracleTarget):
            def logits(self, prefix: tuple[int, ...]) -> torch.Tensor:
                return torch.full((VOCAB,), torch.nan, dtype=torch.float64)

        engine = Engine(Broken(VOCAB, lambda prefix: [1.0] * VOCAB), self.build())
        with pytest.raises(NonFiniteLogits):
            _text(engine, Cell(), 0, 1)

    def _enumerable(self) -> Verifier:
        """A fresh verifier whose draws can be enumerated: the reference, if there is one."""
        verifier: Verifier = self.build()
        return verifier.reference or verifier

    def _trees(self) -> list[str]:
        return [name for name, (draws, _) in TREES.items() if draws in self.traits.draws]

    def _cells(self) -> Any:
        return strategies.cells(
            trees=self._trees(), verifiers=("match",), controllers=("fixed", "adversarial")
        )

    def _decisions(self) -> Any:
        return st.builds(
            Decision,
            st.sampled_from(self._trees()),
            st.sampled_from(strategies.TEMPERATURES),
            st.sampled_from(tuple(FILTERS)),
            st.booleans(),
            st.sampled_from((3, 5, 40)),
            st.booleans(),
            st.integers(0, 9999),
        )


def _match() -> Any:
    from draftwood.plugins.verifiers.match import Match

    return Match()


def _text(engine: Engine, cell: Cell, seed: int, tokens: int) -> list[int]:
    options = evolve(cell.options, max_new_tokens=tokens)
    run = engine.open(Request(PROMPT, options, Seeded(seed), cell.processors))
    while run.finish_reason is None:
        engine.step([run])
    return run.new_ids
