"""Prompt lookup: counts over suffixes against a search of the text, and lossless, at a cost that
does not grow with the text."""

import itertools
import sys
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwood.core.generation import Pipeline
from draftwood.core.interfaces import DraftWork
from draftwood.core.options import Sampling
from draftwood.core.proposals import LookupProposal, best_first_search
from draftwood.core.randomness import Seeded
from draftwood.core.values import Limits
from draftwood.plugins.controllers.fixed import Fixed
from draftwood.plugins.controllers.options import FixedOptions
from draftwood.plugins.drafters.ngram.drafter import Ngram
from draftwood.plugins.drafters.ngram.index import FADE, MEMORY, PRIOR, WIDTH, SuffixIndex
from draftwood.plugins.drafters.options import NgramOptions
from draftwood.plugins.trees.best_first import BestFirst
from draftwood.plugins.trees.by_level import grow_by_level
from draftwood.plugins.trees.options import BestFirstOptions
from draftwood.testing import OracleTarget

V = 20
PERIOD = (3, 1, 4, 1, 5, 9, 2, 6)
texts = st.lists(st.integers(0, 3), min_size=1, max_size=60)


def index_of(ids: list[int], shortest: int = 1, longest: int = 4) -> SuffixIndex:
    index = SuffixIndex(shortest, longest, 0.7)
    for token in ids:
        index.add(token)
    return index


def searched(ids: list[int], context: list[int], n: int) -> dict[int, float]:
    """Faded counts of what followed the last n tokens of `context` in `ids`, by looking."""
    gram, found = context[len(context) - n :], defaultdict[int, float](float)
    for end in range(n, len(ids)):
        if ids[end - n : end] == gram:
            for token in found:
                found[token] *= FADE
            found[ids[end]] += 1.0
    return dict(found) if 0 < n <= len(context) else {}


def spoken(ids: list[int], context: list[int], longest: int) -> list[tuple[int, dict[int, float]]]:
    """(length, counts of the followers that no longer suffix named), longest first, by search."""
    named: set[int] = set()
    parts = []
    for n in range(min(longest, len(context)), 0, -1):
        counts = searched(ids, context, n)
        fresh = {token: count for token, count in counts.items() if token not in named}
        if fresh:
            parts.append((n, fresh))
            named |= fresh.keys()
    return parts


def chances(ids: list[int], context: list[int], longest: int) -> dict[int, float]:
    """What the index must say, with its beliefs learnt anew from every prefix of the text."""
    records: dict[tuple[bool, int], list[float]] = {}

    def belief(first: bool, n: int) -> list[float]:
        return records.setdefault((first, n), [(0.7 if first else 0.3) * PRIOR, PRIOR])

    for end, token in enumerate(ids):
        for place, (n, fresh) in enumerate(spoken(ids[:end], ids[:end], longest)):
            record = belief(place == 0, n)
            record[:] = [MEMORY * record[0] + (token in fresh), MEMORY * record[1] + 1.0]
            if token in fresh:
                break
    left, found = 1.0, {}
    for place, (n, fresh) in enumerate(spoken(ids, context, longest)):
        hits, trials = belief(place == 0, n)
        for token, count in fresh.items():
            found[token] = left * (hits / trials) * count / sum(fresh.values())
        left *= 1.0 - hits / trials
    return found


@given(texts, st.lists(st.integers(0, 3), max_size=3))
def test_chances_are_those_of_a_search_of_the_text(ids: list[int], path: list[int]) -> None:
    context = [*ids[-4:], *path]
    found = dict(index_of(ids).following(context, 99))
    expected = chances(ids, context, 4)
    small = {token for token, chance in expected.items() if chance < 1e-2}  # may be left out
    assert expected.keys() - small <= found.keys() <= expected.keys()
    for token, chance in found.items():
        assert chance == pytest.approx(expected[token])
    assert sum(found.values()) <= 1.0 + 1e-9


def test_a_longer_context_speaks_before_a_more_frequent_short_one() -> None:
    ids = [1, 2, 3, 7, 0, 9, 3, 8, 0, 9, 3, 8, 0, 1, 2, 3]
    (best, _), *rest = index_of(ids, longest=3).following(ids, 4)
    assert best == 7  # came once after 1 2 3; 8 came twice after 3
    assert [token for token, _ in rest] == [8]
    assert index_of(ids, longest=1).following(ids, 1)[0][0] == 8  # negative control


def test_probabilities_follow_how_regular_the_text_is() -> None:
    regular = index_of([0, 1, 2, 3] * 12)
    assert regular.following([0, 1, 2, 3], 1) == [(0, pytest.approx(1.0, abs=0.05))]
    wild = SuffixIndex(1, 2, 0.7)
    for token in [t for n in range(60) for t in (5, 100 + n)]:  # what follows 5 is always new
        wild.add(token)
    assert sum(chance for _, chance in wild.following([5], 99)) < 0.15


def test_the_latest_of_equally_frequent_tokens_is_likelier() -> None:
    assert [token for token, _ in index_of([1, 4, 0, 1, 5, 0]).following([1], 2)] == [5, 4]


@given(texts, st.lists(st.integers(0, 60), max_size=8))
def test_committing_in_runs_equals_committing_at_once(ids: list[int], places: list[int]) -> None:
    edges = [0, *sorted({place % (len(ids) + 1) for place in places}), len(ids)]
    whole, parts = (Ngram().open(OracleTarget(V, periodic), Sampling()) for _ in range(2))
    whole.commit(ids, None)
    for a, b in itertools.pairwise(edges):
        parts.commit(ids[a:b], None)
    for token in range(4):
        context = [*ids, token]
        assert whole.index.following(context, 4) == parts.index.following(context, 4)


def test_a_fork_learns_alone() -> None:
    index = index_of([1, 2, 9, 1, 2])
    before, twin = index.following([2], 4), index.fork()
    for token in (8, 1, 2, 8):
        twin.add(token)
    assert index.following([2], 4) == before
    assert twin.following([2], 4) != before
    assert index.ids == [1, 2, 9, 1, 2]


def periodic(prefix: tuple[int, ...]) -> list[float]:
    probs = [0.01] * V
    probs[PERIOD[len(prefix) % len(PERIOD)]] = 1.0
    return probs


def proposed(ids: list[int], **options: int) -> LookupProposal:
    drafter = Ngram(NgramOptions(**options))
    session = drafter.open(OracleTarget(V, periodic), Sampling(temperature=0.6))
    session.commit(ids[:-1], None)
    (proposal,) = drafter.propose([DraftWork(session, ids[-1], 0, Limits(8), Seeded(0))])
    return proposal


def test_nothing_is_proposed_without_a_repetition() -> None:
    assert proposed([1, 2, 3, 4, 5]).max_depth == 0
    assert proposed([1, 2, 3, 4, 1]).max_depth == NgramOptions().max_depth


def test_a_path_is_a_context_like_the_text() -> None:
    """After a path the text never had in this place, what follows its last tokens is known."""
    proposal = proposed([1, 2, 3, 0, 7, 2, 5, 0, 1])
    assert [token for token, _ in proposal.following(())] == [2]
    assert next(token for token, _ in proposal.following((2,))) == 3  # after 1 2
    assert next(token for token, _ in proposal.following((7, 2))) == 5  # after 7 2


def test_proposals_carry_the_requests_sampling_and_their_best_token() -> None:
    proposal = proposed([1, 2, 3, 1], continuations=1)
    assert (proposal.sampling.temperature, proposal.vocab_size) == (0.6, V)
    probs = proposal.probs(proposal.root())
    assert probs.tolist() == [[float(token == 2) for token in range(V)]]
    assert len(proposal.following(())) == 1


@given(st.lists(st.integers(0, 2), min_size=4, max_size=40), st.integers(1, 12))
def test_both_forms_of_best_first_grow_the_same_tree(ids: list[int], nodes: int) -> None:
    proposal = proposed(ids, max_depth=5)
    if proposal.max_depth:
        one = best_first_search(ids[-1], proposal.table(nodes), nodes, 5)
        two = grow_by_level(ids[-1], proposal, nodes, 5, lambda growth: True)
        assert one.token_list == two.token_list
        assert one.parent_list == two.parent_list
        assert one.log_rho.tolist() == pytest.approx(two.log_rho.tolist())


def pipeline(**options: int) -> Pipeline:
    return Pipeline(
        OracleTarget(V, periodic),
        Ngram(NgramOptions(**options)),
        BestFirst(BestFirstOptions(max_nodes=12)),
        Fixed(FixedOptions(nodes=12)),
    )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("continuations", [1, 4])
def test_repeating_text_is_decoded_faster_and_is_the_same(
    temperature: float, continuations: int
) -> None:
    options = {"temperature": temperature, "seed": 1, "max_new_tokens": 80}
    result = pipeline(continuations=continuations).generate([1, 2, 3], **options)
    assert (
        result.tokens == Pipeline(OracleTarget(V, periodic)).generate([1, 2, 3], **options).tokens
    )
    assert result.stats.accepted > 20
    assert result.stats.rejected > 0


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


def steps(index: SuffixIndex, tokens: list[int]) -> int:
    """Lines of Python that a round of these tokens executes: work, without a clock's noise."""
    count = 0

    def trace(frame: object, event: str, arg: object) -> object:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        for token in tokens:
            index.add(token)
            index.following(index.ids[-index.longest :], 4)
    finally:
        sys.settrace(before)
    return count


def test_a_rounds_work_does_not_grow_with_the_text() -> None:
    """One context followed by ever more different tokens, the worst there is: 200 and 8000 tokens
    of text. A search of the text would do forty times the work."""
    work = []
    for length in (200, 8000):
        index = index_of([t for n in range(length // 2) for t in (0, 1 + n % 500)], longest=6)
        assert max(len(counts) for counts in index.followers.values()) <= WIDTH
        work.append(steps(index, [0, 7, 0, 900, 0, 7]))
    assert work[1] <= 1.25 * work[0]
