"""The decode loop: stops inside accepted runs, limits, parity between budgets, isolation."""

import itertools
from typing import Any

import pytest
import torch
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from draftwood.core import pending
from draftwood.core.draws import Draws
from draftwood.core.engine import Engine, Request, Run, Step
from draftwood.core.errors import NonFiniteLogits, RequestError
from draftwood.core.interfaces import BudgetController, DraftWork, ShouldExpand, TreePolicy
from draftwood.core.kernels.launches import LAUNCHES
from draftwood.core.options import GenerationOptions, Sampling
from draftwood.core.proposals import LookupPaths, Proposal
from draftwood.core.randomness import Seeded
from draftwood.core.stopping import EndOfText, StopRule
from draftwood.core.tree import TokenTree
from draftwood.core.values import Limits, RoundContext, Verdict
from draftwood.plugins.verifiers.match import Match
from draftwood.testing import OracleDrafter, OracleTarget, ScriptedClock

V = 7


def affine(prefix: tuple[int, ...]) -> list[float]:
    """Nearly certain of one token, so that greedy text is a known sequence over 7 tokens."""
    probs = [0.02] * V
    probs[(3 * prefix[-1] + len(prefix)) % V] = 1.0
    return probs


def greedy_text(prompt: tuple[int, ...], count: int) -> list[int]:
    ids = list(prompt)
    for _ in range(count):
        probs = affine(tuple(ids))
        ids.append(probs.index(max(probs)))
    return ids[len(prompt) :]


def oracle_drafter(depth: int, wrong_every: int) -> OracleDrafter:
    """Proposes the target's own greedy text with every n-th token wrong."""

    def propose(prefix: tuple[int, ...], sampling: Sampling) -> Proposal:
        path = greedy_text(prefix, depth)
        path = [
            (token + 1) % V if (len(prefix) + i) % wrong_every == 0 else token
            for i, token in enumerate(path)
        ]
        return LookupPaths((tuple(path),), sampling, V)

    return OracleDrafter(propose)


class LookupChain(TreePolicy):
    def grow(
        self, anchor: int, proposal: Proposal, limits: Limits, should_expand: object, rng: object
    ) -> TokenTree:
        assert isinstance(proposal, LookupPaths)
        path = list(proposal.paths[0][: min(limits.nodes, limits.depth or limits.nodes)])
        n = len(path) + 1
        return TokenTree.from_lists(
            [anchor, *path], list(range(-1, n - 1)), list(range(n)), [0.0] * n
        )


class FixedLimits(BudgetController[None, None]):
    def __init__(self, nodes: int) -> None:
        self.nodes = nodes

    def init(self, costs: object) -> None:
        return None

    def open(self) -> None:
        return None

    def before_draft(self, ctx: object, state: object) -> Limits:
        return Limits(self.nodes)


def engine(nodes: int = 4, wrong_every: int = 5, target: OracleTarget | None = None) -> Engine:
    target = target or OracleTarget(V, affine)
    if nodes == 0:
        return Engine(target, Match(), clock=ScriptedClock())
    drafter = oracle_drafter(nodes, wrong_every)
    return Engine(target, Match(), drafter, LookupChain(), FixedLimits(nodes), ScriptedClock())


def decode(engine: Engine, prompt: tuple[int, ...] = (1, 2), **options: object) -> Run:
    stops: tuple[StopRule, ...] = options.pop("stops", ())  # type: ignore[assignment]
    generation = GenerationOptions(**options)  # type: ignore[arg-type]
    run = engine.open(Request(prompt, generation, Seeded(generation.seed or 0), stops=stops))
    while run.finish_reason is None:
        engine.step([run])
    return run


@pytest.mark.parametrize("nodes", [0, 1, 3, 6])
def test_greedy_text_equals_the_targets(nodes: int) -> None:
    run = decode(engine(nodes), max_new_tokens=60)
    assert run.new_ids == greedy_text((1, 2), 60)
    if nodes:
        assert run.stats.accepted > 0
        assert run.stats.rejected > 0


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_one_seed_gives_one_text_with_every_budget(seed: int, temperature: float) -> None:
    texts = {
        tuple(decode(engine(n, w), temperature=temperature, seed=seed, max_new_tokens=40).new_ids)
        for n, w in [(0, 1), (1, 5), (4, 3), (6, 100)]
    }
    assert len(texts) == 1


def test_different_seeds_give_different_texts() -> None:
    texts = {
        tuple(decode(engine(), temperature=3.0, seed=s, max_new_tokens=40).new_ids)
        for s in range(4)
    }
    assert len(texts) == 4


@pytest.mark.covers("token-limit")
@pytest.mark.parametrize("nodes", [0, 1, 2, 5, 16])
@pytest.mark.parametrize("count", range(8))
def test_exactly_max_new_tokens_are_committed(nodes: int, count: int) -> None:
    run = decode(engine(nodes, wrong_every=100), max_new_tokens=count)
    assert run.new_ids == greedy_text((1, 2), count)
    assert run.finish_reason == "length"
    assert run.stats.committed == max(0, count - 1)  # the first token is the prefill's


@pytest.mark.covers("end-of-text-in-run", "statistics-after-stop")
@pytest.mark.parametrize("offset", range(12))
@pytest.mark.parametrize("nodes", [0, 3, 6])
def test_the_earliest_stop_inside_an_accepted_run_wins(nodes: int, offset: int) -> None:
    expected = greedy_text((1, 2), 30)

    def at_offset(ids: list[int], prompt_length: int) -> str | None:
        return "custom" if len(ids) - prompt_length == offset + 1 else None

    def later(ids: list[int], prompt_length: int) -> str | None:
        return "later" if len(ids) - prompt_length == offset + 2 else None

    run = decode(engine(nodes, 100), max_new_tokens=30, stops=(later, at_offset))
    assert (run.new_ids, run.finish_reason) == (expected[: offset + 1], "custom")
    # Nothing past the stop is cached or counted: K/V of all committed tokens but the last.
    assert run.session.length == len(run.ids) - 1
    assert sum(run.stats.committed_per_round) + 1 == len(run.new_ids)


@given(st.sampled_from(range(V)), st.integers(0, 6))
def test_end_of_text_stops_at_its_first_occurrence(token: int, nodes: int) -> None:
    expected = greedy_text((1, 2), 40)
    run = decode(engine(nodes, 7), max_new_tokens=40, stops=(EndOfText(frozenset({token})),))
    if token in expected:
        assert run.new_ids == expected[: expected.index(token) + 1]
        assert run.finish_reason == "eos"
    else:
        assert run.finish_reason == "length"


@pytest.mark.covers("token-limit")
def test_decoding_ends_at_the_context_limit() -> None:
    for nodes, limit in itertools.product([0, 2, 6], range(3, 9)):
        target = OracleTarget(V, affine, max_context=limit)
        run = decode(engine(nodes, 100, target), max_new_tokens=30)
        assert run.finish_reason == "context"
        assert len(run.ids) == limit


@pytest.mark.covers("prompt-length")
@pytest.mark.parametrize(
    ("prompt", "message"),
    [((), "empty"), ((1, 99), "outside"), ((1, -1), "outside"), ((1,) * 9, "no room")],
)
def test_a_wrong_prompt_raises_and_the_engine_stays_usable(
    prompt: tuple[int, ...], message: str
) -> None:
    shared = engine(3, 5, OracleTarget(V, affine, max_context=9))
    with pytest.raises(RequestError, match=message):
        decode(shared, prompt, max_new_tokens=4)
    assert decode(shared, max_new_tokens=4).new_ids == greedy_text((1, 2), 4)


def test_interleaved_requests_equal_separate_ones() -> None:
    shared = engine(4, 3)
    prompts = [(1, 2), (5,), (3, 3, 3)]
    options = GenerationOptions(max_new_tokens=25)
    runs = [shared.open(Request(p, options, Seeded(0))) for p in prompts]
    while any(run.finish_reason is None for run in runs):
        for run in runs:
            if run.finish_reason is None:
                shared.step([run])
    assert [run.new_ids for run in runs] == [greedy_text(p, 25) for p in prompts]


def test_stepping_a_fork_does_not_change_the_original_run() -> None:
    shared = engine(4, 3)
    run = shared.open(Request((1, 2), GenerationOptions(max_new_tokens=30), Seeded(0)))
    for _ in range(4):
        shared.step([run])
    fork, before = run.fork(), list(run.ids)
    while fork.finish_reason is None:
        shared.step([fork])
    assert run.ids == before
    while run.finish_reason is None:
        shared.step([run])
    assert run.ids == fork.ids


@pytest.mark.covers("non-finite-logits")
def test_a_row_without_a_finite_logit_raises_with_its_position() -> None:
    class Broken(OracleTarget):
        def logits(self, prefix: tuple[int, ...]) -> torch.Tensor:
            row = super().logits(prefix).clone()
            if len(prefix) == 6:
                row[:] = torch.nan
            return row

    for temperature in (0.0, 1.0):
        with pytest.raises(NonFiniteLogits, match="position 6"):
            decode(engine(2, 100, Broken(V, affine)), max_new_tokens=20, temperature=temperature)


def test_a_finished_request_cannot_be_stepped() -> None:
    shared = engine()
    run = decode(shared, max_new_tokens=3)
    with pytest.raises(RequestError, match="has ended"):
        shared.step([run])


def test_plain_decoding_commits_one_token_a_round() -> None:
    run = decode(engine(0), max_new_tokens=10)
    assert run.stats.accepted_length == 1.0
    assert run.stats.drafted == 0
    assert decode(engine(0), max_new_tokens=1).stats.accepted_length is None


@pytest.mark.covers("log-probabilities")
def test_log_probabilities_are_of_the_model_at_temperature_1() -> None:
    for nodes in (0, 4):
        shared = engine(nodes, 3)
        options = GenerationOptions(max_new_tokens=12, temperature=2.0, logprobs=True)
        run = shared.open(Request((1, 2), options, Seeded(0)))
        logprobs: list[float] = []
        while run.finish_reason is None:
            logprobs.extend(shared.step([run])[0].logprobs or ())
        ids = tuple(run.ids)
        expected = [
            float(shared.target.logits(ids[:i])[ids[i]])  # type: ignore[attr-defined]
            for i in range(2, len(ids))
        ]
        assert logprobs == pytest.approx(expected, abs=1e-12)


class Scripted(FixedLimits):
    """Cycles through `limits`, expands each tree `expands` times, and cuts its last node."""

    def __init__(self, *limits: Limits, expands: int = 0) -> None:
        self.limits, self.expands = limits, expands
        self.contexts: list[RoundContext] = []
        self.chosen: list[RoundContext] = []

    def before_draft(self, ctx: RoundContext, state: object) -> Limits:  # type: ignore[override]
        self.contexts.append(ctx)
        self.left = self.expands
        return self.limits[ctx.round % len(self.limits)]

    def should_expand(self, growth: TokenTree, ctx: object, state: object) -> bool:
        self.left -= 1
        return self.left >= 0

    def choose(self, tree: TokenTree, ctx: RoundContext, state: object) -> int:
        self.chosen.append(ctx)
        return max(0, tree.nodes - 1)


class ExpandingChain(LookupChain):
    """Calls `should_expand` until it returns False."""

    def grow(
        self,
        anchor: int,
        proposal: Proposal,
        limits: Limits,
        should_expand: ShouldExpand,
        rng: object,
    ) -> TokenTree:
        tree = super().grow(anchor, proposal, limits, should_expand, rng)
        while should_expand(tree):
            pass
        return tree


def scripted(
    controller: Scripted, tree: TreePolicy | None = None, drafter: OracleDrafter | None = None
) -> Engine:
    drafter = drafter or oracle_drafter(6, 100)
    return Engine(
        OracleTarget(V, affine),
        Match(),
        drafter,
        tree or LookupChain(),
        controller,
        ScriptedClock(),
    )


def steps(engine: Engine, **options: object) -> list[Step]:
    """All rounds of one request."""
    generation = GenerationOptions(max_new_tokens=24, **options)  # type: ignore[arg-type]
    run = engine.open(Request((1, 2), generation, Seeded(0)))
    taken: list[Step] = []
    while run.finish_reason is None:
        taken += engine.step([run])
    return taken[1:]


def test_last_draft_counts_the_rounds_since_the_drafter_ran() -> None:
    controller = Scripted(Limits(2), Limits(0), Limits(0))
    steps(scripted(controller))
    assert [ctx.last_draft for ctx in controller.contexts[:7]] == [None, 0, 1, 2, 0, 1, 2]


def test_trees_are_no_deeper_than_the_controllers_limit() -> None:
    rounds = [step.stats for step in steps(scripted(Scripted(Limits(6, depth=2))))]
    assert max(stats.grown for stats in rounds if stats) == 2


def test_round_stats_hold_the_grown_and_the_verified_nodes() -> None:
    rounds = [step.stats for step in steps(scripted(Scripted(Limits(4))))]
    assert (rounds[0].grown, rounds[0].budget) == (4, 3)  # type: ignore[union-attr]


def test_passes_of_a_trees_levels_are_in_the_context_and_the_stats() -> None:
    controller = Scripted(Limits(4), expands=2)
    rounds = [step.stats for step in steps(scripted(controller, ExpandingChain()))]
    assert rounds[0].passes == controller.chosen[0].passes == 2  # type: ignore[union-attr]


def test_a_stop_inside_accepted_drafts_counts_only_committed_ones() -> None:
    inside = 0
    for token in range(V):
        shared = engine(6, wrong_every=100)
        stops = (EndOfText((token,)),)
        generation = GenerationOptions(max_new_tokens=40)
        run = shared.open(Request((1, 2), generation, Seeded(0), stops=stops))
        while run.finish_reason is None:
            (step,) = shared.step([run])
        stats = step.stats
        if stats is not None and stats.committed < len(stats.verdict.accepted):
            inside += 1
            assert stats.accepted == stats.committed == len(step.tokens)
    assert inside


def test_a_fork_has_its_own_statistics() -> None:
    shared = engine(4, 3)
    run = shared.open(Request((1, 2), GenerationOptions(max_new_tokens=30), Seeded(0)))
    for _ in range(3):
        shared.step([run])
    fork, before = run.fork(), (run.stats.rounds, run.stats.committed)
    shared.step([fork])
    assert (run.stats.rounds, run.stats.committed) == before
    assert fork.stats.rounds == before[0] + 1


def test_draft_draws_differ_between_rounds_at_one_position() -> None:
    """An earlier verdict depended on the earlier draws, so they must not be used twice."""
    seen = []

    class RecordingDrafter(OracleDrafter):
        def propose(self, work: list[DraftWork]) -> list[Proposal]:  # type: ignore[override]
            seen.append(tuple(work[0].rng.categorical(even, place) for place in range(4)))
            return super().propose(work)

    even = torch.full((1000,), 1e-3, dtype=torch.float64)
    plain = oracle_drafter(6, 100)
    steps(scripted(Scripted(Limits(2)), drafter=RecordingDrafter(plain._propose)))
    assert len(set(seen)) == len(seen) > 4


def test_drawn_trees_are_never_cut() -> None:
    class Drawn(LookupChain):
        def grow(self, *given: object) -> TokenTree:  # type: ignore[override]
            tree = super().grow(*given)  # type: ignore[arg-type]
            columns = tree.token_list, tree.parent_list, tree.depth_list, tree.log_rho_list
            probs = torch.nn.functional.one_hot(tree.tokens[1:], V).double()
            return TokenTree.from_lists(*columns, Draws.CHAIN, probs)

    controller = Scripted(Limits(4))
    rounds = [step.stats for step in steps(scripted(controller, Drawn()))]
    assert all(stats.budget == stats.grown for stats in rounds if stats)
    assert not controller.chosen


def test_a_drafter_that_does_not_run_receives_tokens_when_the_queue_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pending, "LIMIT", 8)
    shared = scripted(Scripted(Limits(0)))
    run = shared.open(Request((1, 2), GenerationOptions(max_new_tokens=40), Seeded(0)))
    while run.finish_reason is None:
        shared.step([run])
        assert len(run.pending.tokens) < 8
    assert run.draft.ids == tuple(run.ids[: len(run.draft.ids)])  # type: ignore[union-attr]
    assert len(run.draft.ids) > 24  # type: ignore[union-attr]


class NearTies(Match):
    """Counts every third judgement as a near tie."""

    def __init__(self) -> None:
        super().__init__()
        self.judged = 0

    def judge(self, *given: Any) -> Verdict:
        self.judged += 1
        return evolve(super().judge(*given), near_ties=int(self.judged % 3 == 0))


def test_near_ties_are_counted_for_the_request_of_their_round() -> None:
    verifier = NearTies()
    shared = Engine(OracleTarget(V, affine), verifier, clock=ScriptedClock())
    runs = [decode(shared, max_new_tokens=count) for count in (10, 2, 12)]
    assert verifier.judged == 24
    assert [run.stats.near_ties for run in runs] == [3, 1, 4]


class CapturingTarget(OracleTarget):
    """A target that captures, records the arguments of its methods, and may launch a kernel per
    forward pass, prefill included."""

    def __init__(self, how: object, launches: bool = False) -> None:
        super().__init__(V, affine)
        self.how, self.launches = how, launches
        self.opened: list[object] = []
        self.priced: list[tuple[object, object]] = []

    def capturing(self) -> Any:
        return self.how

    def open(self, taps: Any = (), kernels: object = None) -> Any:
        self.opened.append(kernels)
        return super().open(taps, kernels)

    def costs(self, clock: Any, kernels: Any = None) -> Any:
        self.priced.append((clock, kernels))
        return super().costs(clock, kernels)

    def logits(self, prefix: tuple[int, ...]) -> torch.Tensor:
        if self.launches:
            LAUNCHES.add("attend")
        return super().logits(prefix)


class CapturableDrafter(OracleDrafter):
    def __init__(self) -> None:
        super().__init__(oracle_drafter(3, 100)._propose)
        self.given: list[tuple[object, object]] = []

    def capture(self, kernels: object, capturing: object) -> "CapturableDrafter":
        self.given.append((kernels, capturing))
        return self


def test_kernel_launches_are_counted_for_the_request_that_was_stepped() -> None:
    LAUNCHES.add("attend", 5)  # before any request
    kernels: Any = object()
    target = CapturingTarget(None, launches=True)
    shared = Engine(target, Match(), clock=ScriptedClock(), kernels=kernels)
    runs = [decode(shared, max_new_tokens=count) for count in (4, 7)]
    # Without drafts each step, the prefill included, reads one row.
    assert [dict(run.stats.kernels) for run in runs] == [{"attend": 4}, {"attend": 7}]
    assert target.opened == [kernels, kernels]
    assert not decode(engine(0), max_new_tokens=4).stats.kernels


@pytest.mark.parametrize("has_kernels", [True, False])
@pytest.mark.parametrize("captures", [True, False])
def test_a_drafter_is_captured_if_there_are_kernels_and_the_target_captures(
    has_kernels: bool, captures: bool
) -> None:
    kernels: Any = object() if has_kernels else None
    how = object() if captures else None
    drafter, clock = CapturableDrafter(), ScriptedClock()
    target = CapturingTarget(how)
    Engine(target, Match(), drafter, LookupChain(), FixedLimits(3), clock, kernels)
    assert drafter.given == ([(kernels, how)] if has_kernels and captures else [])
    assert target.priced == [(clock, kernels)]  # costs are of the forward passes that will run


@pytest.mark.parametrize("nodes", [0, 1, 4])
def test_a_stop_rule_is_called_once_for_each_committed_token(nodes: int) -> None:
    seen: list[int] = []

    def record(ids: Any, prompt_length: int) -> str | None:
        seen.append(len(ids) - prompt_length)
        return "tenth" if len(seen) == 10 else None

    run = decode(engine(nodes), max_new_tokens=30, stops=(record,))
    assert seen == list(range(1, 11))
    assert (len(run.new_ids), run.finish_reason) == (10, "tenth")


@pytest.mark.parametrize("nodes", [0, 4])
def test_an_error_of_a_stop_rule_reaches_the_caller_as_it_is(nodes: int) -> None:
    def fails(ids: Any, prompt_length: int) -> str | None:
        raise ZeroDivisionError("in the rule")

    with pytest.raises(ZeroDivisionError, match="in the rule"):
        decode(engine(nodes), max_new_tokens=30, stops=(fails,))
