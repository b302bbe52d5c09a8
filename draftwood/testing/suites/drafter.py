"""The contract of every drafter."""

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
from draftwood.core.proposals import (
    FactorizedProposal,
    LookupProposal,
    MarkovProposal,
    MixtureProposal,
    Proposal,
)
from draftwood.core.randomness import Seeded
from draftwood.core.registry.plugin import Kind
from draftwood.core.values import Limits
from draftwood.testing.oracle import OracleTarget
from draftwood.testing.suites.base import Suite
from draftwood.testing.toy_pipelines import CONTROLLERS, TREES, ToyPipeline
from draftwood.testing.toys import toy_target

FORM_CLASSES: Mapping[str, type] = {
    "factorized": FactorizedProposal,
    "mixture": MixtureProposal,
    "markov": MarkovProposal,
    "lookup": LookupProposal,
    "autoregressive": Proposal,
}


class DrafterSuite(Suite):
    """Proposals match the traits, and sessions hold committed tokens only.

    A drafter that needs a real model overrides `target`; any other is also enumerated.

    Attributes:
        prompt: Token ids that the target can continue.
    """

    kind: ClassVar[Kind] = Kind.DRAFTER
    prompt: ClassVar[Sequence[int]] = (0, 1, 2, 0, 1, 2, 0, 1)

    def target(self) -> Target:
        """The model to draft for; by default a toy target of three tokens."""
        return toy_target(0)

    def test_proposals_are_of_the_declared_form(self) -> None:
        proposal = self._proposed(Sampling(1.0))
        assert isinstance(proposal, FORM_CLASSES[self.traits.form])
        assert proposal.pass_per_level == self.traits.pass_per_level
        assert proposal.max_depth <= self.traits.max_depth
        assert proposal.sampling.temperature == 1.0

    @pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
    def test_distributions_are_distributions_over_the_targets_vocabulary(
        self, temperature: float
    ) -> None:
        proposal = self._proposed(Sampling(temperature))
        at = proposal.root()
        for depth in range(min(3, proposal.max_depth)):
            probs = proposal.probs(at)
            assert probs.shape == (1, self._target.vocab_size)
            assert float(probs.min()) >= 0.0
            assert float(probs.sum()) == pytest.approx(1.0, abs=1e-5)
            if temperature == 0.0:
                assert float(probs.max()) == pytest.approx(1.0)
            if depth + 1 < proposal.max_depth:
                token = probs.argmax(-1)
                at = proposal.advance(at, torch.tensor([0]), token.cpu())

    def test_expanded_tokens_are_the_most_probable_ones(self) -> None:
        proposal = self._proposed(Sampling(1.0))
        if isinstance(proposal, LookupProposal) or proposal.max_depth == 0:
            pytest.skip("lookup proposals score their paths by weight, not by a distribution")
        at = proposal.root()
        for depth in range(min(3, proposal.max_depth)):
            children, (tokens, values) = proposal.expand(at, 3), stable_topk(proposal.probs(at), 3)
            possible = values > 0
            assert torch.allclose(children.log_q.exp().to(values.dtype)[possible], values[possible])
            assert torch.equal(children.tokens[possible], tokens[possible])
            if depth + 1 < proposal.max_depth:
                at = proposal.advance(at, torch.tensor([0]), tokens[:, 0].cpu())

    def test_filters_limit_the_distribution(self) -> None:
        proposal = self._proposed(Sampling(1.0, top_k=2))
        if proposal.max_depth and not isinstance(proposal, LookupProposal):
            probs = proposal.probs(proposal.root())[0]
            kept = probs[probs > 0].sort(descending=True).values
            # Tokens that tie with the second one all stay, as in `sampling_probs`.
            assert (kept[2:] == kept[1:2]).all(), f"top_k=2 leaves {len(kept)} tokens: {kept}"

    def test_committing_in_pieces_equals_committing_at_once(self) -> None:
        whole = self._proposed(Sampling(1.0))
        for size in (1, 3):
            pieces = self._proposed(Sampling(1.0), size)
            assert _equal(whole, pieces)

    def test_a_fork_does_not_change_the_original_session(self) -> None:
        before = self._proposed(Sampling(1.0))
        fork = self._session.fork()
        features = self._last_features
        fork.commit((self.prompt[0],) * 2, None if features is None else features[:1].expand(2, -1))
        after = self._propose()
        assert _equal(before, after)

    def test_the_original_session_does_not_change_a_fork(self) -> None:
        self._proposed(Sampling(1.0))
        original, self._session = self._session, self._session.fork()
        before, features = self._propose(), self._last_features
        more = None if features is None else features[:1].expand(2, -1)
        original.commit((self.prompt[0],) * 2, more)
        assert _equal(before, self._propose())

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    @pytest.mark.parametrize("tree", ["chain", "best_first"])
    def test_text_equals_plain_decodings_with_the_same_seed(
        self, tree: str, temperature: float
    ) -> None:
        target = self.target()
        drafted = Pipeline(target, self.build(), TREES[tree][1](), CONTROLLERS["fixed"]())
        options: dict[str, Any] = {
            "temperature": temperature,
            "seed": 5,
            "max_new_tokens": 24,
            "eos_token_id": (),
        }
        plain = Pipeline(target).generate(self.prompt, **options)
        assert drafted.generate(self.prompt, **options).tokens == plain.tokens

    def test_the_output_distribution_is_the_targets_when_drafts_are_drawn(self) -> None:
        """By enumeration, with best-first trees under `match` and drawn chains under `ratio`.

        `ratio` shows a distribution that is not the one that drafts are drawn from. Only for
        drafters that work with a target without weights.
        """
        if not isinstance(self.target(), OracleTarget):
            pytest.skip("the target has weights: it cannot be enumerated")

        def check(toy: ToyPipeline) -> None:
            for tree, rule in (("best_first", "match"), ("sampled-chain", "ratio")):
                evolve(toy, tree=tree, verifier=rule).check(drafter=self.build())

        toys = st.builds(
            ToyPipeline, temperature=st.sampled_from((1.0, 0.5, 0.0)), seed=st.integers(0, 99)
        )
        self.search(toys, check)

    _target: Target
    _drafter: Drafter
    _session: DraftSession
    _last_features: Any = None

    def _proposed(self, sampling: Sampling, piece: int | None = None) -> Proposal:
        """The proposal of a fresh session that holds the prompt without its last token.

        piece: number of tokens of a commit; all at once by default.
        """
        self._target = self.target()
        self._drafter = self.build().bind(self._target)
        self._session = self._drafter.open(self._target, sampling)
        ids = tuple(self.prompt[:-1])
        features = self._target.open(self._drafter.taps).prefill(ids).features
        self._last_features = features
        size = piece or len(ids)
        for start in range(0, len(ids), size):
            part = slice(start, start + size)
            self._session.commit(ids[part], None if features is None else features[part])
        return self._propose()

    def _propose(self) -> Proposal:
        position, limits = len(self.prompt) - 1, Limits(8, self.traits.max_depth)
        rng = Seeded(3).stream("draft")
        work = DraftWork(self._session, self.prompt[-1], position, limits, rng)
        (proposal,) = self._drafter.propose([work])
        return proposal


def _equal(one: Proposal, two: Proposal) -> bool:
    """Whether two proposals have equal distributions along the most likely path of the first."""
    if one.max_depth != two.max_depth:
        return False
    at_one, at_two = one.root(), two.root()
    for depth in range(min(3, one.max_depth)):
        probs = one.probs(at_one)
        if not torch.allclose(probs, two.probs(at_two), atol=1e-5):
            return False
        if depth + 1 < one.max_depth:
            row, token = torch.tensor([0]), probs.argmax(-1).cpu()
            at_one, at_two = one.advance(at_one, row, token), two.advance(at_two, row, token)
    return True
