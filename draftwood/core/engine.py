"""The only decode loop, as a stepper: `open(request) -> Run`, `step([run])`.

A round is draft -> grow -> budget -> verify -> judge -> commit. Generation, streaming, interleaved
requests and the exact-distribution tests all use this `step`; plain decoding is the same step with
budget 0. Nothing in a round depends on the target's logits of that round before `judge`, which is
what makes every controller safe for the output distribution."""

import copy
import itertools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from attrs import astuple, define, evolve, field, frozen
from torch import Tensor

from draftwood.core.draws import Draws
from draftwood.core.errors import RequestError
from draftwood.core.interfaces import (
    BudgetController,
    ControllerState,
    Drafter,
    DraftSession,
    DraftWork,
    Target,
    TargetSession,
    TreePolicy,
    Verifier,
)
from draftwood.core.node_distributions import Processor, TargetDistributions
from draftwood.core.options import GenerationOptions
from draftwood.core.pending import Pending
from draftwood.core.processes import broadcast_from_rank0
from draftwood.core.randomness import Randomness
from draftwood.core.stats import RequestStats
from draftwood.core.stopping import Length, StopRule, append_until_stop
from draftwood.core.stopwatch import Stopwatch, device_marks
from draftwood.core.tree import TokenTree
from draftwood.core.values import Forwarded, Limits, RoundContext, RoundStats, Timings, Verdict


@frozen(eq=False)
class Request:
    """One text to decode.

    prompt: token ids, at least one. options: temperature, limits and the like. randomness: this
    request's draws. processors: path-dependent logits processors. stops: rules before the length
    limits, which the engine adds itself.
    """

    prompt: tuple[int, ...]
    options: GenerationOptions
    randomness: Randomness
    processors: tuple[Processor, ...] = ()
    stops: tuple[StopRule, ...] = ()


@define(eq=False)
class Run:
    """A request being decoded. ids: prompt and committed tokens, the anchor last.

    finish_reason: None while it goes on. Owned by the engine; read it, step it, fork it.
    """

    id: int
    request: Request
    session: TargetSession
    draft: DraftSession | None
    controller_state: Any
    length: Length
    ids: list[int]
    stats: RequestStats = field(factory=RequestStats)
    finish_reason: str | None = None
    prefilled: bool = False
    last_draft: int | None = None
    pending: Pending = field(factory=Pending)

    @property
    def prompt_length(self) -> int:
        return len(self.request.prompt)

    @property
    def new_ids(self) -> list[int]:
        return self.ids[self.prompt_length :]

    def fork(self) -> "Run":
        """An independent copy that goes on from here."""
        return evolve(
            self,
            session=self.session.fork(),
            draft=self.draft.fork() if self.draft else None,
            ids=self.ids.copy(),
            stats=copy.deepcopy(self.stats),
            pending=self.pending.copy(),
        )


@frozen(eq=False)
class Step:
    """What one step committed: tokens, their log-probabilities if asked for, why the request
    ended (or None), and the round's stats (None for the prefill, which is not a round)."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    finish_reason: str | None
    stats: RoundStats | None


class Engine:
    """Decodes with a target and a verifier, and with a drafter, tree and controller if given.

    clock: seconds, the only source of time. machine: the controller's knowledge of this machine,
    which outlives requests.
    """

    def __init__(
        self,
        target: Target,
        verifier: Verifier,
        drafter: Drafter | None = None,
        tree: TreePolicy | None = None,
        controller: BudgetController[Any, Any] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        parts = {"drafter": drafter, "tree": tree, "controller": controller}
        missing = [name for name, part in parts.items() if part is None]
        if 0 < len(missing) < len(parts):
            raise RequestError(
                f"a pipeline that speculates needs a drafter, a tree and a controller; "
                f"missing: {', '.join(missing)}"
            )
        self.target, self.verifier = target, verifier.bind(target)
        self.tree, self.controller = tree, controller
        self.clock = clock
        self._marks = device_marks(target.device)
        self._ids = itertools.count()
        kernels = self.verifier.kernels
        if drafter:
            drafter = drafter.bind(target)
            if kernels is not None and (capturing := target.capturing()) is not None:
                drafter = drafter.capture(kernels, capturing)
        self.drafter = drafter
        self.taps = drafter.taps if drafter else ()
        self.machine = controller.init(target.costs(clock, kernels)) if controller else None

    def open(self, request: Request) -> Run:
        """A run of `request`; nothing is computed before its first step.

        Raises RequestError for an empty prompt, one with ids outside the vocabulary, or one that
        leaves no room in the target's context.
        """
        self._check(request)
        options = request.options
        run = Run(
            id=next(self._ids),
            request=request,
            session=self.target.open(self.taps, self.verifier.kernels),
            draft=self.drafter.open(self.target, options.sampling) if self.drafter else None,
            controller_state=self.controller.open() if self.controller else None,
            length=Length(options.max_new_tokens, self.target.max_context),
            ids=list(request.prompt),
        )
        if options.max_new_tokens == 0:
            run.finish_reason = "length"
        return run

    def step(self, runs: Sequence[Run]) -> list[Step]:
        """One round (or the prefill) of each run. Version 1 takes one run at a time."""
        if len(runs) != 1:
            raise NotImplementedError("this version steps one run at a time")
        run = runs[0]
        if run.finish_reason is not None:
            raise RequestError(f"request {run.id} has ended ({run.finish_reason})")
        before = self._launched()
        step = self._round(run) if run.prefilled else self._prefill(run)
        run.stats.kernels += self._launched() - before
        return [step]

    def _launched(self) -> Counter[str]:
        """Launches of the verifier's kernels so far, by name."""
        kernels = self.verifier.kernels
        return Counter(kernels.launches() if kernels else {})

    def _check(self, request: Request) -> None:
        if not request.prompt:
            raise RequestError("the prompt is empty; it needs at least one token")
        outside = [t for t in request.prompt if not 0 <= t < self.target.vocab_size]
        if outside:
            raise RequestError(
                f"prompt token {outside[0]} is outside the target's vocabulary of "
                f"{self.target.vocab_size}"
            )
        limit = self.target.max_context
        if limit is not None and len(request.prompt) >= limit:
            raise RequestError(
                f"the prompt has {len(request.prompt)} tokens and the target holds {limit}: "
                "there is no room for a new one"
            )

    def _prefill(self, run: Run) -> Step:
        watch = Stopwatch(self.clock, self._marks)
        forwarded = run.session.prefill(run.request.prompt)
        watch.lap("prefill")
        # Judging a tree of the root alone draws the first anchor with its own position's uniform.
        tree = TokenTree.root(run.ids[-1])
        distributions = self._distributions(run, tree, forwarded)
        verdict = self._judge(run, tree, distributions)
        watch.lap("judge")
        self._remember(run, run.request.prompt, forwarded.features)
        run.prefilled = True
        tokens, logprobs = self._emit(run, tree, distributions, verdict)
        run.stats.add_time(watch.timings())
        return Step(tokens, logprobs, run.finish_reason, None)

    def _round(self, run: Run) -> Step:
        watch = Stopwatch(self.clock, self._marks)
        remaining = run.length.remaining(len(run.ids), run.prompt_length)
        ctx = RoundContext(run.stats.rounds, len(run.ids), remaining, run.last_draft)
        limits = self._limits(run, ctx)
        tree, grown, passes = TokenTree.root(run.ids[-1]), 0, 0
        if limits.nodes:
            tree, passes = self._draft(run, ctx, limits, watch)
            grown, ctx = tree.nodes, evolve(ctx, passes=passes)
            tree = self._cut(run, ctx, tree)
            watch.lap("grow")
        else:
            watch.lap(None)
        (forwarded,) = self.target.forward([(run.session, tree)])
        watch.lap("verify")
        distributions = self._distributions(run, tree, forwarded)
        verdict = self._judge(run, tree, distributions)
        watch.lap("judge")
        tokens, logprobs = self._emit(run, tree, distributions, verdict)
        path = verdict.accepted[: len(tokens)]
        watch.lap(None)
        run.session.commit(path)
        watch.lap("commit")
        features = forwarded.features
        if features is not None and len(path) < len(tree):
            features = features[list(path)]
        self._remember(run, [tree.token_list[node] for node in path], features)
        run.last_draft = 0 if limits.nodes else _older(run.last_draft)
        stats = RoundStats(
            request=run.id,
            round=ctx.round,
            context=ctx.context,
            drafted=limits.nodes > 0,
            passes=passes,
            grown=grown,
            budget=tree.nodes,
            accepted=min(len(tokens), len(verdict.accepted) - 1),
            committed=len(tokens),
            tree=tree,
            verdict=verdict,
            timings=Timings(*broadcast_from_rank0(astuple(watch.timings()))),
        )
        run.stats.add(stats)
        self._observe(run, stats)
        return Step(tokens, logprobs, run.finish_reason, stats)

    def _state(self, run: Run) -> ControllerState[Any, Any]:
        return ControllerState(self.machine, run.controller_state)

    def _limits(self, run: Run, ctx: RoundContext) -> Limits:
        """The controller's limits, and no deeper than tokens can still be committed."""
        if self.controller is None:
            return Limits(0)
        limits = self.controller.before_draft(ctx, self._state(run))
        room = ctx.remaining - 1  # the bonus takes one
        depth = room if limits.depth is None else min(limits.depth, room)
        return evolve(limits, depth=depth) if depth > 0 and limits.nodes > 0 else Limits(0, 0)

    def _draft(
        self, run: Run, ctx: RoundContext, limits: Limits, watch: Stopwatch
    ) -> tuple[TokenTree, int]:
        """The grown tree, and how often the drafter's model ran for it."""
        assert self.drafter
        assert self.tree
        assert self.controller
        assert run.draft
        self._ingest(run)
        watch.lap(None)  # catching up is not the price of this draft
        # Draft draws of one position differ from round to round: a draw that an earlier verdict
        # already depended on must not be used again.
        rng = run.request.randomness.stream(f"draft/{ctx.round}")
        position = len(run.ids) - 1
        work = DraftWork(run.draft, run.ids[-1], position, limits, rng)
        (proposal,) = self.drafter.propose([work])
        watch.lap("draft")
        controller, state = self.controller, self._state(run)
        passes = proposal.passes

        def should_expand(growth: TokenTree) -> bool:
            nonlocal passes
            pays = controller.should_expand(growth, ctx, state)
            passes += pays
            return pays

        tree = self.tree.grow(run.ids[-1], proposal, limits, should_expand, rng)
        watch.lap("grow")
        return tree, passes

    def _cut(self, run: Run, ctx: RoundContext, tree: TokenTree) -> TokenTree:
        assert self.controller
        if tree.draws is not Draws.DETERMINISTIC:
            return tree
        return tree.cut(self.controller.choose(tree, ctx, self._state(run)))

    def _distributions(
        self, run: Run, tree: TokenTree, forwarded: Forwarded
    ) -> TargetDistributions:
        return TargetDistributions(
            forwarded.logits,
            tree,
            run.ids,
            run.request.options.sampling,
            run.request.processors,
            run.stats.rounds,
        )

    def _judge(self, run: Run, tree: TokenTree, distributions: TargetDistributions) -> Verdict:
        verdict = self.verifier.judge(distributions, tree, run.request.randomness.stream("verify"))
        run.stats.near_ties += verdict.near_ties
        return verdict

    def _emit(
        self, run: Run, tree: TokenTree, distributions: TargetDistributions, verdict: Verdict
    ) -> tuple[tuple[int, ...], tuple[float, ...] | None]:
        """Append the verdict's tokens up to the earliest stop; returns those that were kept."""
        drafts = [tree.token_list[node] for node in verdict.accepted[1:]]
        tokens = [*drafts, verdict.bonus]
        rules: tuple[StopRule, ...] = (*run.request.stops, run.length)
        before = len(run.ids)
        run.finish_reason = append_until_stop(rules, run.ids, tokens, run.prompt_length)
        tokens = tokens[: len(run.ids) - before]
        logprobs = None
        if run.request.options.logprobs:
            logprobs = tuple(
                distributions.log_probability(node, token)
                for node, token in zip(verdict.accepted, tokens, strict=False)
            )
        return tuple(tokens), logprobs

    def _remember(self, run: Run, tokens: Sequence[int], features: Tensor | None) -> None:
        """Queue committed tokens for the drafter; it ingests them when it next runs."""
        if run.draft is None:
            return
        run.pending.add(tokens, features)
        if run.pending.full:
            self._ingest(run)

    def _ingest(self, run: Run) -> None:
        assert run.draft
        if run.pending.tokens:
            run.draft.commit(*run.pending.take())

    def _observe(self, run: Run, stats: RoundStats) -> None:
        if self.controller is not None:
            state = self.controller.observe(stats, self._state(run))
            self.machine, run.controller_state = state.machine, state.request


def _older(last_draft: int | None) -> int | None:
    return None if last_draft is None else last_draft + 1
