"""The only decode loop, as a stepper: `open(request) -> Run`, `step([run])`.

A round is draft -> grow -> budget -> verify -> judge -> commit. Generation, streaming, interleaved
requests and the exact-distribution tests all use this `step`; plain decoding is the same step with
budget 0. Nothing in a round depends on the target's logits of that round before `judge`: this makes
every controller safe for the output distribution.
"""

import copy
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import astuple, define, evolve, field, frozen
from torch import Tensor

from draftwood.core.controlled_round import ControlledRound
from draftwood.core.errors import PluginError, RequestError, TreeError
from draftwood.core.interfaces import (
    BudgetController,
    ControllerState,
    Drafter,
    DraftSession,
    DraftWork,
    Kernels,
    Target,
    TargetSession,
    TreePolicy,
    Verifier,
)
from draftwood.core.kernels.launches import LAUNCHES
from draftwood.core.node_distributions import Processor, TargetDistributions, TopLogprobs
from draftwood.core.options import GenerationOptions
from draftwood.core.pending import Pending
from draftwood.core.plugin_calls import call, plugin_error
from draftwood.core.processes import broadcast_from_rank0
from draftwood.core.proposals import Proposal
from draftwood.core.randomness import Randomness
from draftwood.core.stats import RequestStats
from draftwood.core.stopping import EndOfText, Length, StopRule, append_until_stop
from draftwood.core.stopwatch import Stopwatch, device_marks
from draftwood.core.tree import TokenTree
from draftwood.core.values import Forwarded, Limits, RoundContext, RoundStats, Timings, Verdict


@frozen(eq=False)
class Request:
    """One text to decode.

    Attributes:
        prompt: Token ids, at least one.
        options: Temperature, limits and the like.
        randomness: This request's draws.
        processors: Logits processors, which may depend on the path.
        stops: Rules applied before the length limits, which the engine adds.
        inputs: More inputs of the target's own prefill: images.
    """

    prompt: tuple[int, ...]
    options: GenerationOptions
    randomness: Randomness
    processors: tuple[Processor, ...] = ()
    stops: tuple[StopRule, ...] = ()
    inputs: Mapping[str, Any] = field(factory=dict)


@define(eq=False)
class Run:
    """A request being decoded. The engine changes it; callers read it, step it and fork it.

    Attributes:
        id: Number of the request in this engine.
        request: What is decoded.
        session: The target's K/V of the committed tokens.
        draft: The drafter's state of the committed tokens; None in plain decoding.
        controller_state: The request's part of the controller's state.
        length: The rule of the length limits.
        ids: Prompt and committed tokens, the anchor last.
        stats: Totals of the rounds so far.
        finish_reason: None until the request ends.
        prefilled: Whether the first token was committed.
        last_draft: Rounds since the drafter last ran; None if it has not.
        pending: Committed tokens that the drafter has not received yet.
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
        """Tokens of the prompt."""
        return len(self.request.prompt)

    @property
    def new_ids(self) -> list[int]:
        """Committed tokens without the prompt."""
        return self.ids[self.prompt_length :]

    @property
    def end_tokens(self) -> frozenset[int]:
        """Tokens after which the text always ends."""
        rules = (rule for rule in self.request.stops if isinstance(rule, EndOfText))
        return frozenset().union(*(rule.ids for rule in rules))

    def stop_reason(self, path: Sequence[int]) -> str | None:
        """Why a stop rule of the request ends the text after these uncommitted tokens, or None."""
        committed = len(self.ids)
        self.ids.extend(path)  # a copy would cost the context for every draft token
        try:
            reasons = (rule(self.ids, self.prompt_length) for rule in self.request.stops)
            return next((reason for reason in reasons if reason), None)
        finally:
            del self.ids[committed:]

    def fork(self) -> "Run":
        """An independent copy; both can be stepped from here."""
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
    """What one step committed.

    Attributes:
        tokens: The committed tokens.
        logprobs: Their log-probabilities if the request wants them, else None.
        finish_reason: Why the request ended; None if it has not.
        stats: The round's; None for the prefill, which is not a round.
        top_logprobs: The most likely tokens at each place if the request wants them, else None.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    finish_reason: str | None
    stats: RoundStats | None
    top_logprobs: tuple[TopLogprobs, ...] | None = None


class Engine:
    """Decodes with a target and a verifier, and with a drafter, tree and controller if given.

    Args:
        target: The model whose distribution is preserved.
        verifier: Bound to the target here, as the drafter is.
        drafter: Given together with `tree` and `controller`, or not at all.
        tree: Turns proposals into trees.
        controller: Decides budgets.
        clock: Seconds; the only source of time.
        kernels: Attention and compaction kernels for the target and for captured drafters; None
            for the models' own attention.

    Attributes:
        machine: The machine part of the controller's state, shared by all requests.

    Raises:
        RequestError: Some of drafter, tree and controller are missing.
        PairingError: The drafter does not fit the target.
        UnsupportedTarget: The verifier cannot run on the target's device.
        PluginError: A plugin failed while it was bound or initialised.
    """

    def __init__(
        self,
        target: Target,
        verifier: Verifier,
        drafter: Drafter | None = None,
        tree: TreePolicy | None = None,
        controller: BudgetController[Any, Any] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        kernels: Kernels | None = None,
    ) -> None:
        parts = {"drafter": drafter, "tree": tree, "controller": controller}
        missing = [name for name, part in parts.items() if part is None]
        if 0 < len(missing) < len(parts):
            raise RequestError(
                f"a pipeline that speculates needs a drafter, a tree and a controller; "
                f"missing: {', '.join(missing)}"
            )
        self.target, self.tree, self.controller, self.clock = target, tree, controller, clock
        self.kernels = kernels
        self.verifier = call(Verifier, verifier.bind, target)
        self.drafter = self._bound(drafter) if drafter else None
        self.taps = self.drafter.taps if self.drafter else ()
        self.machine = self._machine(controller) if controller else None
        self._marks = device_marks(target.device)
        self._ids = itertools.count()

    def _bound(self, drafter: Drafter) -> Drafter:
        drafter = call(Drafter, drafter.bind, self.target)
        if self.kernels is not None and (capturing := self.target.capturing()) is not None:
            drafter = call(Drafter, drafter.capture, self.kernels, capturing)
        return drafter

    def _machine(self, controller: BudgetController[Any, Any]) -> Any:
        costs = self.target.costs(self.clock, self.kernels)
        return call(object, controller.init, costs)

    def open(self, request: Request) -> Run:
        """A run of `request`; nothing is computed before its first step.

        Raises:
            RequestError: The prompt is empty, has ids outside the vocabulary, or leaves no room in
                the target's context.
        """
        self._check(request)
        options = request.options
        draft = None
        if self.drafter:
            open_session = self.drafter.open
            draft = call(DraftSession, open_session, self.target, options.sampling)
        run = Run(
            id=next(self._ids),
            request=request,
            session=self.target.open(self.taps, self.kernels),
            draft=draft,
            controller_state=call(object, self.controller.open) if self.controller else None,
            length=Length(options.max_new_tokens, self.target.max_context),
            ids=list(request.prompt),
        )
        if options.max_new_tokens == 0:
            run.finish_reason = "length"
        return run

    def step(self, runs: Sequence[Run]) -> list[Step]:
        """One round, or the prefill, of each run. Version 1 takes one run at a time.

        Raises:
            RequestError: The request has ended.
            NonFiniteLogits: The target's logits hold no distribution.
            PluginError: A plugin raised, or returned something malformed.
        """
        if len(runs) != 1:
            raise NotImplementedError("this version steps one run at a time")
        run = runs[0]
        if run.finish_reason is not None:
            raise RequestError(f"request {run.id} has ended ({run.finish_reason})")
        before = LAUNCHES.counts()
        step = self._round(run) if run.prefilled else self._prefill(run)
        run.stats.kernels += LAUNCHES.counts() - before
        return [step]

    def _check(self, request: Request) -> None:
        size, prompt = self.target.vocab_size, request.prompt
        if not prompt:
            raise RequestError("the prompt is empty; it needs at least one token")
        outside = [token for token in prompt if not 0 <= token < size]
        if outside:
            raise RequestError(
                f"prompt token {outside[0]} is outside the target's vocabulary of {size}"
            )
        limit = self.target.max_context
        if limit is not None and len(prompt) >= limit:
            raise RequestError(
                f"the prompt has {len(prompt)} tokens and the target holds {limit}: "
                "there is no room for a new one"
            )

    def _prefill(self, run: Run) -> Step:
        watch = Stopwatch(self.clock, self._marks)
        forwarded = run.session.prefill(run.request.prompt, run.request.inputs)
        watch.lap("prefill")
        # Judging a tree of the root alone draws the first anchor with its own position's uniform.
        tree = TokenTree.root(run.ids[-1])
        distributions = self._distributions(run, tree, forwarded)
        verdict = self._judge(run, tree, distributions)
        watch.lap("judge")
        self._queue_for_drafter(run, run.request.prompt, forwarded.features)
        run.prefilled = True
        tokens = self._append(run, tree, distributions, verdict)
        run.stats.add_time(watch.timings())
        return self._step(run, tokens, distributions, verdict, None)

    def _round(self, run: Run) -> Step:
        watch = Stopwatch(self.clock, self._marks)
        remaining = run.length.remaining(len(run.ids), run.prompt_length)
        ctx = RoundContext(run.stats.rounds, len(run.ids), remaining, run.last_draft)
        state = ControllerState(self.machine, run.controller_state)
        controlled = ControlledRound(self.controller, state, ctx)
        tree = TokenTree.root(run.ids[-1])
        if controlled.limits.nodes:
            tree = controlled.cut(self._draft(run, controlled, watch))
            watch.lap("grow")
        else:
            watch.lap(None)
        (forwarded,) = self.target.forward([(run.session, tree)])
        watch.lap("verify")
        distributions = self._distributions(run, tree, forwarded)
        verdict = self._judge(run, tree, distributions, controlled.limits)
        watch.lap("judge")
        tokens = self._append(run, tree, distributions, verdict)
        path = verdict.accepted[: len(tokens)]
        watch.lap(None)
        run.session.commit(path)
        watch.lap("commit")
        features = forwarded.features
        if features is not None and len(path) < len(tree):
            features = features[list(path)]
        self._queue_for_drafter(run, [tree.token_list[node] for node in path], features)
        run.last_draft = controlled.next_last_draft
        timings = Timings(*broadcast_from_rank0(astuple(watch.timings())))
        stats = controlled.stats(run.id, tree, verdict, len(tokens), timings)
        run.stats.add(stats)
        state = controlled.observe(stats)
        self.machine, run.controller_state = state.machine, state.request
        return self._step(run, tokens, distributions, verdict, stats)

    def _draft(self, run: Run, controlled: ControlledRound, watch: Stopwatch) -> TokenTree:
        """The grown tree."""
        assert self.drafter
        assert self.tree
        assert run.draft
        self._give_pending(run)
        watch.lap(None)  # not part of this draft's cost
        # Draft draws of one position differ from round to round: a draw that an earlier verdict
        # depended on must not be used a second time.
        rng = run.request.randomness.stream(f"draft/{controlled.ctx.round}")
        limits = controlled.limits
        work = DraftWork(run.draft, run.ids[-1], len(run.ids) - 1, limits, rng)
        proposal = self._propose(self.drafter, work)
        watch.lap("draft")
        controlled.passes = proposal.passes
        grow = self.tree.grow
        tree = call(TokenTree, grow, run.ids[-1], proposal, limits, controlled.should_expand, rng)
        self._check_tree(run, tree, limits)
        tree = tree.without_descendants(run.end_tokens)
        watch.lap("grow")
        return tree

    def _propose(self, drafter: Drafter, work: DraftWork) -> Proposal:
        proposals = call(Sequence, drafter.propose, [work])
        if len(proposals) != 1 or not isinstance(proposals[0], Proposal):
            kinds = [type(item).__name__ for item in proposals]
            raise plugin_error(drafter.propose, f"returned {kinds}, not one Proposal per request")
        return proposals[0]

    def _check_tree(self, run: Run, tree: TokenTree, limits: Limits) -> None:
        """Raise PluginError for a malformed tree, which could change the text unnoticed."""
        try:
            tree.validate(
                anchor=run.ids[-1],
                nodes=limits.nodes,
                depth=limits.depth,
                vocab_size=self.target.vocab_size,
            )
        except TreeError as error:
            assert self.tree
            raise plugin_error(self.tree.grow, f"returned a malformed tree: {error}") from error

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
            run.stop_reason if run.request.stops else None,
        )

    def _judge(
        self,
        run: Run,
        tree: TokenTree,
        distributions: TargetDistributions,
        limits: Limits | None = None,
    ) -> Verdict:
        """The verifier's decision. limits: of a grown tree; None for a root alone."""
        rng = run.request.randomness.stream("verify")
        try:
            verdict = call(Verdict, self.verifier.judge, distributions, tree, rng)
        except PluginError as error:
            if distributions.caller_error is not None:  # the caller's function, not the plugin
                raise distributions.caller_error from None
            raise error
        if limits and tree.tokens.device.type != "cpu":  # the verdict's copy included its columns
            self._check_tree(run, tree, limits)
        self._check_verdict(tree, distributions, verdict)
        run.stats.near_ties += verdict.near_ties
        return verdict

    def _check_verdict(
        self, tree: TokenTree, distributions: TargetDistributions, verdict: Verdict
    ) -> None:
        """Raise PluginError unless the verdict is a path from the anchor and a token after it."""
        path = verdict.accepted
        if path[:1] != (0,) or any(
            not 0 < child < len(tree) or tree.parent_list[child] != node
            for node, child in itertools.pairwise(path)
        ):
            reason = f"accepted nodes {path}, which are not a path from the anchor"
            raise plugin_error(self.verifier.judge, reason)
        if verdict.bonus is None:
            if not distributions.ends(path[-1]):
                reason = f"chose no bonus token after node {path[-1]}, which does not end the text"
                raise plugin_error(self.verifier.judge, reason)
        elif not 0 <= verdict.bonus < self.target.vocab_size:
            reason = f"chose bonus token {verdict.bonus}, which is outside the vocabulary"
            raise plugin_error(self.verifier.judge, reason)

    def _append(
        self, run: Run, tree: TokenTree, distributions: TargetDistributions, verdict: Verdict
    ) -> tuple[int, ...]:
        """Append the verdict's tokens up to the earliest stop; return those that were kept."""
        drafts: list[int] = []
        for node in verdict.accepted[1:]:
            drafts.append(tree.token_list[node])
            run.finish_reason = distributions.stop_reason(node)
            if run.finish_reason:
                break
        before = len(run.ids)
        run.ids.extend(drafts)
        # The length limits leave room for a bonus behind every draft, so they end no draft.
        if run.finish_reason is None and verdict.bonus is not None:
            rules: tuple[StopRule, ...] = (*run.request.stops, run.length)
            run.finish_reason = append_until_stop(
                rules, run.ids, [verdict.bonus], run.prompt_length
            )
        return tuple(run.ids[before:])

    def _step(
        self,
        run: Run,
        tokens: tuple[int, ...],
        distributions: TargetDistributions,
        verdict: Verdict,
        stats: RoundStats | None,
    ) -> Step:
        """What the step returns, with the log-probabilities that the request wants."""
        options, logprobs, top = run.request.options, None, None
        nodes = verdict.accepted[: len(tokens)]
        if options.logprobs or options.top_logprobs:
            pairs = zip(nodes, tokens, strict=True)
            logprobs = tuple(distributions.log_probability(*pair) for pair in pairs)
        if options.top_logprobs:
            top = tuple(distributions.top_logprobs(node, options.top_logprobs) for node in nodes)
        return Step(tokens, logprobs, run.finish_reason, stats, top)

    def _queue_for_drafter(self, run: Run, tokens: Sequence[int], features: Tensor | None) -> None:
        """Queue committed tokens; the drafter receives them when it next runs."""
        if run.draft is None:
            return
        run.pending.add(tokens, features)
        if run.pending.full:
            self._give_pending(run)

    def _give_pending(self, run: Run) -> None:
        assert run.draft
        if run.pending.tokens:
            call(object, run.draft.commit, *run.pending.take())
