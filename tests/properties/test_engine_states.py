"""The state of each interleaved request equals that of a request that runs alone."""

from typing import Any

import pytest
from attrs import evolve
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from draftwood.core.engine import Engine, Request, Run
from draftwood.core.errors import PluginError
from draftwood.core.interfaces import NodeDistributions
from draftwood.core.options import GenerationOptions
from draftwood.core.randomness import Randomness, Seeded
from draftwood.core.tree import TokenTree
from draftwood.core.values import Verdict
from draftwood.plugins.verifiers.match import Match
from draftwood.testing import AdversarialController, OracleDrafter, OracleTarget, ScriptedClock
from draftwood.testing.toy_pipelines import TREES
from draftwood.testing.toys import toy_proposal, toy_target

VOCAB = 3


class ScriptedMatch(Match):
    """Returns a given verdict: any path of the tree, any bonus."""

    def __init__(self) -> None:
        super().__init__()
        self.choice: tuple[int, int] | None = None
        self.fails = False

    def judge(self, distributions: NodeDistributions, tree: TokenTree, rng: Randomness) -> Verdict:
        if self.fails:
            raise RuntimeError("scripted failure")
        if self.choice is None:
            return super().judge(distributions, tree, rng)
        node, bonus = self.choice
        return Verdict(tuple(tree.path(node % len(tree))), bonus)


class RecordingDrafter(OracleDrafter):
    """Records the whole text that each draft was made from."""

    def __init__(self) -> None:
        super().__init__(self._record)
        self.seen: list[tuple[int, ...]] = []

    def _record(self, prefix: tuple[int, ...], sampling: Any) -> Any:
        self.seen.append(prefix)
        return toy_proposal("factorized", prefix, sampling)


class Requests(RuleBasedStateMachine):
    """Requests on one engine: stepped in any order, with any verdict, stopped, forked, failing.

    They are compared with a fresh engine, which has no cache.
    """

    runs: Bundle[Run] = Bundle("runs")

    def __init__(self) -> None:
        super().__init__()
        self.verifier, self.drafter = ScriptedMatch(), RecordingDrafter()
        self.target: OracleTarget = toy_target(1)
        self.engine = Engine(
            self.target,
            self.verifier,
            self.drafter,
            TREES["best_first"][1](),
            AdversarialController(),
            ScriptedClock(),
        )
        self.open: list[Run] = []

    @rule(
        target=runs,
        prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=4),
        temperature=st.sampled_from((0.0, 1.0)),
        tokens=st.integers(1, 12),
    )
    def begin(self, prompt: list[int], temperature: float, tokens: int) -> Run:
        options = GenerationOptions(temperature=temperature, max_new_tokens=tokens)
        run = self.engine.open(Request(tuple(prompt), options, Seeded(7)))
        self.open.append(run)
        return run

    @rule(run=runs, node=st.integers(0, 4), bonus=st.integers(0, VOCAB - 1))
    def any_verdict(self, run: Run, node: int, bonus: int) -> None:
        self._step(run, (node, bonus))

    @rule(run=runs)
    def own_verdict(self, run: Run) -> None:
        self._step(run, None)

    @rule(target=runs, run=runs)
    def fork(self, run: Run) -> Run:
        other = run.fork()
        self.open.append(other)
        return other

    @rule(run=runs)
    def stop(self, run: Run) -> None:
        run.finish_reason = run.finish_reason or "stopped"

    @rule(run=runs)
    def fail_in_the_verifier(self, run: Run) -> None:
        """The round is lost; this request and the others do not change."""
        if run.finish_reason is not None or not run.prefilled:
            return
        before = list(run.ids)
        self.verifier.fails = True
        try:
            self.engine.step([run])
        except PluginError:
            pass
        else:
            raise AssertionError("the failure was not raised")
        finally:
            self.verifier.fails = False
        assert run.ids == before

    def _step(self, run: Run, choice: tuple[int, int] | None) -> None:
        if run.finish_reason is not None:
            return
        before, drafts = list(run.ids), len(self.drafter.seen)
        self.verifier.choice = choice if run.prefilled else None
        (step,) = self.engine.step([run])
        assert run.ids == [*before, *step.tokens]
        # A draft was made from this request's whole text, and from nothing else.
        assert all(prefix == tuple(before) for prefix in self.drafter.seen[drafts:])
        if choice is None:
            self._as_if_alone(run, before, list(step.tokens))

    def _as_if_alone(self, run: Run, before: list[int], tokens: list[int]) -> None:
        """`match` with this seed gives each position's token, independent of earlier rounds."""
        for at, token in enumerate(tokens, len(before)):
            plain = Engine(self.target, Match(), clock=ScriptedClock())
            options = evolve(run.request.options, max_new_tokens=1)
            text = tuple(run.ids[:at])
            alone = plain.open(Request(text, options, run.request.randomness))
            plain.step([alone])
            assert alone.new_ids == [token]

    @invariant()
    def caches_hold_the_committed_text_but_the_anchor(self) -> None:
        for run in self.open:
            if not run.prefilled:
                continue
            assert run.session.length == len(run.ids) - 1
            assert run.session.ids == tuple(run.ids[:-1])  # type: ignore[attr-defined]
            assert run.draft is not None
            drafted_from = (*run.draft.ids, *run.pending.tokens)  # type: ignore[attr-defined]
            assert drafted_from == tuple(run.ids[:-1])
            assert len(run.new_ids) <= run.request.options.max_new_tokens
            assert run.stats.committed == max(0, len(run.new_ids) - 1)


TestRequests = Requests.TestCase
TestRequests.settings = settings(max_examples=15, stateful_step_count=20, deadline=None)


class CommitsTheFirstRows(OracleTarget):
    """Wrong: commits the first rows of a forward instead of the accepted path."""

    def open(self, taps: Any = (), kernels: Any = None) -> Any:
        session = super().open(taps, kernels)
        right = session.commit
        session.commit = lambda path: right(range(len(path)))  # type: ignore[method-assign]
        return session


class RequestsWithAWrongCache(Requests):
    def __init__(self) -> None:
        super().__init__()
        self.engine.target = CommitsTheFirstRows(VOCAB, lambda prefix: [1.0] * VOCAB)


def test_a_cache_that_keeps_the_wrong_nodes_fails() -> None:
    """Negative control of the state machine's invariants."""
    search = settings(
        max_examples=60, derandomize=True, database=None, deadline=None, phases=[Phase.generate]
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(RequestsWithAWrongCache, settings=search)
