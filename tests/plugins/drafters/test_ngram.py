"""Prompt lookup: what followed the same tokens before, found without a scan, lossless."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwood.core.generation import Pipeline
from draftwood.core.interfaces import DraftWork
from draftwood.core.options import Sampling
from draftwood.core.proposals import Points
from draftwood.core.randomness import Seeded
from draftwood.core.values import Limits
from draftwood.plugins.controllers.fixed import Fixed
from draftwood.plugins.controllers.options import FixedOptions
from draftwood.plugins.drafters.ngram import Ngram, NgramSession
from draftwood.plugins.drafters.options import NgramOptions
from draftwood.plugins.trees.best_first import BestFirst
from draftwood.plugins.trees.options import BestFirstOptions
from draftwood.testing import OracleTarget

V = 20
PERIOD = (3, 1, 4, 1, 5, 9, 2, 6)


def session_of(ids: list[int], **options: int) -> NgramSession:
    session = NgramSession(NgramOptions(**options), Sampling(), V)
    session.commit(ids, None)
    return session


def periodic(prefix: tuple[int, ...]) -> list[float]:
    law = [0.01] * V
    law[PERIOD[len(prefix) % len(PERIOD)]] = 1.0
    return law


def pipeline(**options: int) -> Pipeline:
    return Pipeline(
        OracleTarget(V, periodic),
        Ngram(NgramOptions(**options)),
        BestFirst(BestFirstOptions(max_nodes=12)),
        Fixed(FixedOptions(nodes=12)),
    )


def test_the_longest_context_comes_first_and_then_the_most_recent() -> None:
    #                      long match        recent match of two  another, older
    session = session_of([1, 2, 3, 7, 7, 0, 2, 3, 8, 8, 0, 1, 2], max_depth=2)
    assert session.continuations(3) == [(7, 7), (8, 8)]
    session = session_of([2, 3, 7, 7, 0, 2, 3, 8, 8, 0, 2], max_depth=2)
    assert session.continuations(3) == [(8, 8), (7, 7)]


def test_the_same_continuation_is_proposed_once() -> None:
    session = session_of([2, 3, 7, 0, 2, 3, 7, 0, 2, 3, 6, 0, 2], max_depth=1, continuations=3)
    assert session.continuations(3) == [(6,), (7,)]


def test_a_continuation_may_run_into_the_anchor_and_no_further() -> None:
    session = session_of([5, 5], max_ngram=2, min_ngram=1, max_depth=4)
    assert (5, 5) in session.continuations(5)
    assert all(len(path) <= 4 for path in session.continuations(5))


def test_nothing_is_proposed_without_a_repetition() -> None:
    session = session_of([1, 2, 3, 4])
    (proposal,) = Ngram().propose([DraftWork(session, 5, 4, Limits(8), Seeded(0))])
    assert proposal.max_depth == 0


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=60),
    st.lists(st.integers(0, 60), max_size=8),
)
def test_committing_in_runs_equals_committing_at_once(ids: list[int], places: list[int]) -> None:
    edges = [0, *sorted({place % (len(ids) + 1) for place in places}), len(ids)]
    whole, parts = session_of(ids), session_of([])
    for a, b in itertools.pairwise(edges):
        parts.commit(ids[a:b], None)
    assert parts.ends == whole.ends
    assert [parts.continuations(a) for a in range(4)] == [whole.continuations(a) for a in range(4)]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(0, 3))
def test_every_continuation_did_follow_the_same_context(ids: list[int], anchor: int) -> None:
    options = NgramOptions()
    text = [*ids, anchor]
    for path in session_of(ids).continuations(anchor):
        ends = [
            end
            for end in range(options.min_ngram, len(text))
            if tuple(text[end : end + len(path)]) == path
            and text[end - options.min_ngram : end] == text[-options.min_ngram :]
        ]
        assert ends


def test_a_fork_learns_alone() -> None:
    session = session_of([1, 2, 9, 1])
    fork = session.fork()
    fork.commit([2, 8, 1], None)
    assert session.continuations(2) == [(9, 1, 2)]
    assert session.ids == [1, 2, 9, 1]
    assert len(fork.continuations(2)) == 2


def test_proposals_carry_the_requests_sampling_and_the_confidence() -> None:
    drafter, sampling = Ngram(NgramOptions(confidence=0.4)), Sampling(temperature=0.6)
    session = drafter.open(OracleTarget(V, periodic), sampling)
    session.commit([1, 2, 3, 1], None)
    (proposal,) = drafter.propose([DraftWork(session, 2, 4, Limits(8), Seeded(0))])
    assert isinstance(proposal, Points)
    assert (proposal.sampling, proposal.confidence, proposal.vocab_size) == (sampling, 0.4, V)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("continuations", [1, 4])
def test_repeating_text_is_decoded_faster_and_is_the_same(
    temperature: float, continuations: int
) -> None:
    asked = {"temperature": temperature, "seed": 1, "max_new_tokens": 80}
    result = pipeline(continuations=continuations).generate([1, 2, 3], **asked)
    assert result.tokens == Pipeline(OracleTarget(V, periodic)).generate([1, 2, 3], **asked).tokens
    assert result.stats.accepted > 20
    assert result.stats.rejected > 0 or temperature == 0.0


def test_text_without_repetition_is_decoded_plainly() -> None:
    def counts(prefix: tuple[int, ...]) -> list[float]:
        return [float(token == len(prefix)) for token in range(V)]

    shared = pipeline()
    shared.engine.target = OracleTarget(V, counts)
    result = shared.generate([0], max_new_tokens=V - 1)
    assert result.tokens == tuple(range(1, V))
    assert result.stats.accepted == 0
    assert result.stats.budgets == [0] * result.stats.rounds


def test_a_shortest_context_above_the_longest_is_refused() -> None:
    with pytest.raises(ValueError, match="min_ngram 4 is above max_ngram 3"):
        NgramOptions(max_ngram=3, min_ngram=4)
