"""What every drafter must hold."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest
import torch
from attrs import evolve
from hypothesis import strategies as st

from draftwood.core.distributions import stable_topk
from draftwood.core.generation import Pipeline
from draftwood.core.interfaces import Drafter, DraftSession, DraftWork, Target
from draftwood.core.options import Sampling
from draftwood.core.proposals import Factorized, LookupProposal, Markov, Mixture, Proposal
from draftwood.core.randomness import Seeded
from draftwood.core.registry.plugin import Kind
from draftwood.core.values import Limits
from draftwood.testing.cells import CONTROLLERS, TREES, Cell
from draftwood.testing.oracle import OracleTarget
from draftwood.testing.suites.base import Suite
from draftwood.testing.toys import toy_target

FORMS: Mapping[str, type] = {
    "factorized": Factorized,
    "mixture": Mixture,
    "markov": Markov,
    "lookup": LookupProposal,
    "autoregressive": Proposal,
}


class DrafterSuite(Suite):
    """Proposals are what the traits say, their distributions are the ones draws use, and sessions
    hold nothing but what was committed.

    A drafter that needs a real model overrides `target`; without one it is also enumerated.
    prompt: ids that the target can go on from. temperature: that distribution tests propose at.
    """

    kind: ClassVar[Kind] = Kind.DRAFTER
    prompt: ClassVar[Sequence[int]] = (0, 1, 2, 0, 1, 2, 0, 1)

    def target(self) -> Target:
        """The model to draft for: a toy of three tokens by default."""
        return toy_target(0)

    def test_proposals_are_of_the_declared_form(self) -> None:
        _, _, proposal = self._proposed(Sampling(1.0))
        assert isinstance(proposal, FORMS[self.traits.form])
        assert proposal.pass_per_level == self.traits.pass_per_level
        assert proposal.max_depth <= self.traits.max_depth
        assert proposal.sampling.temperature == 1.0

    @pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
    def test_distributions_are_distributions_over_the_targets_vocabulary(
        self, temperature: float
    ) -> None:
        target, _, proposal = self._proposed(Sampling(temperature))
        at = proposal.root()
        for depth in range(min(3, proposal.max_depth)):
            probs = proposal.probs(at)
            assert probs.shape == (1, target.vocab_size)
            assert float(probs.min()) >= 0.0
            assert float(probs.sum()) == pytest.approx(1.0, abs=1e-5)
            if temperature == 0.0:
                assert float(probs.max()) == pytest.approx(1.0)
            if depth + 1 < proposal.max_depth:
                token = probs.argmax(-1)
                at = proposal.advance(at, torch.tensor([0]), token.cpu())

    def test_the_best_tokens_are_those_of_the_distribution(self) -> None:
        _, _, proposal = self._proposed(Sampling(1.0))
        if isinstance(proposal, LookupProposal) or proposal.max_depth == 0:
            pytest.skip("points score their paths by trust, not by a distribution")
        at = proposal.root()
        children, (tokens, values) = proposal.expand(at, 3), stable_topk(proposal.probs(at), 3)
        possible = values > 0
        assert torch.allclose(children.log_q.exp().to(values.dtype)[possible], values[possible])
        assert torch.equal(children.tokens[possible], tokens[possible])

    def test_filters_reach_the_distribution(self) -> None:
        _, _, proposal = self._proposed(Sampling(1.0, top_k=2))
        if proposal.max_depth and not isinstance(proposal, LookupProposal):
            assert int((proposal.probs(proposal.root()) > 0).sum()) <= 2

    def test_committing_in_pieces_is_committing_at_once(self) -> None:
        whole = self._proposed(Sampling(1.0))[2]
        for size in (1, 3):
            pieces = self._proposed(Sampling(1.0), size)[2]
            assert _same(whole, pieces)

    def test_a_fork_goes_on_by_itself(self) -> None:
        _, session, before = self._proposed(Sampling(1.0))
        fork = session.fork()
        features = self._last_features
        fork.commit((self.prompt[0],) * 2, None if features is None else features[:1].expand(2, -1))
        after = self._propose(session, len(self.prompt) - 1)
        assert _same(before, after)

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    @pytest.mark.parametrize("tree", ["chain", "best_first"])
    def test_text_is_plain_decodings_with_the_same_seed(
        self, tree: str, temperature: float
    ) -> None:
        target = self.target()
        drafted = Pipeline(target, self.build(), TREES[tree][1](), CONTROLLERS["fixed"]())
        asked: dict[str, Any] = {
            "temperature": temperature,
            "seed": 5,
            "max_new_tokens": 24,
            "eos_token_id": (),
        }
        plain = Pipeline(target).generate(self.prompt, **asked)
        assert drafted.generate(self.prompt, **asked).tokens == plain.tokens

    def test_the_output_distribution_is_the_targets_when_drafts_are_drawn(self) -> None:
        """Enumerated with drawn chains under `ratio`: a distribution that is not the one drawn from
        shows here. Only for drafters that work for a target without weights."""
        if not isinstance(self.target(), OracleTarget):
            pytest.skip("the target has weights: it cannot be enumerated")

        def check(cell: Cell) -> None:
            for tree, rule in (("best_first", "match"), ("sampled-chain", "ratio")):
                evolve(cell, tree=tree, verifier=rule).check(drafter=self.build())

        cells = st.builds(
            Cell, temperature=st.sampled_from((1.0, 0.5, 0.0)), seed=st.integers(0, 99)
        )
        self.search(cells, check)

    _last_features: Any = None

    def _proposed(
        self, sampling: Sampling, piece: int | None = None
    ) -> tuple[Target, DraftSession, Proposal]:
        """The target, a session with the prompt but its last token, and what it proposes."""
        target = self.target()
        self._drafter = self.build().bind(target)
        session = self._drafter.open(target, sampling)
        ids = tuple(self.prompt[:-1])
        features = target.open(self._drafter.taps).prefill(ids).features
        self._last_features = features
        size = piece or len(ids)
        for start in range(0, len(ids), size):
            part = slice(start, start + size)
            session.commit(ids[part], None if features is None else features[part])
        return target, session, self._propose(session, len(ids))

    _drafter: Drafter

    def _propose(self, session: DraftSession, position: int) -> Proposal:
        limits = Limits(8, self.traits.max_depth)
        work = DraftWork(session, self.prompt[-1], position, limits, Seeded(3).stream("draft"))
        (proposal,) = self._drafter.propose([work])
        return proposal


def _same(one: Proposal, two: Proposal) -> bool:
    """Whether two proposals agree along their most likely path."""
    if one.max_depth != two.max_depth:
        return False
    here, there = one.root(), two.root()
    for depth in range(min(3, one.max_depth)):
        probs = one.probs(here)
        if not torch.allclose(probs, two.probs(there), atol=1e-5):
            return False
        if depth + 1 < one.max_depth:
            token = probs.argmax(-1).cpu()
            here = one.advance(here, torch.tensor([0]), token)
            there = two.advance(there, torch.tensor([0]), token)
    return True
