"""The exact output distribution of a whole pipeline on a toy vocabulary, in float64.

Every outcome of every draw is followed with its probability, round by round, and equal states are
merged after each round. The result is compared with the product of the target's own conditional
distributions. With a horizon of the deepest path + 2, a second round starts after every kind of
verdict.
"""

from collections.abc import Sequence
from typing import TypedDict, Unpack

import torch
from attrs import evolve, frozen

from draftwood.core.distributions import sampling_probs
from draftwood.core.engine import Engine, Request, Run
from draftwood.core.generation import Pipeline
from draftwood.core.interfaces import NodeDistributions, Verifier
from draftwood.core.node_distributions import Processor, TargetDistributions
from draftwood.core.options import GenerationOptions
from draftwood.core.randomness import Randomness
from draftwood.core.stopping import StopRule
from draftwood.core.tree import TokenTree
from draftwood.core.values import Verdict
from draftwood.testing.enumeration import DrawKey, Enumerating, outcomes
from draftwood.testing.oracle import OracleTarget, Prefix, ScriptedClock

SequenceProbs = dict[Prefix, float]
"""Probability of each sequence of new tokens."""

TokenProbs = dict[int, float]
"""Probability of each next token after some prefix."""

TOLERANCE = 1e-12


class Conditions(TypedDict, total=False):
    """How the pipeline of an exact distribution decodes.

    Attributes:
        options: Temperature and filters; a Pipeline's own by default, else temperature 1.
        processors: Logits processors, applied at every node.
        stops: Rules that end a sequence before the horizon.
    """

    options: GenerationOptions
    processors: Sequence[Processor]
    stops: Sequence[StopRule]


@frozen(eq=False)
class _State:
    """A run between rounds, and the controller's machine state, which outlives it.

    open_keys: keys drawn at positions that are not committed yet. closed_keys: all others, of every
    path that was merged into this one. No later draw may use either.
    """

    run: Run
    machine: object
    open_keys: frozenset[DrawKey] = frozenset()
    closed_keys: frozenset[DrawKey] = frozenset()

    @property
    def merge_key(self) -> tuple[object, ...]:
        """States with equal keys have the same future."""
        run = self.run
        return (
            tuple(run.ids),
            run.finish_reason,
            run.stats.rounds,
            run.last_draft,
            run.controller_state,
            self.machine,
            self.open_keys,
        )


def exact_distribution(
    pipeline: Engine | Pipeline,
    prompt: Sequence[int],
    horizon: int,
    **conditions: Unpack[Conditions],
) -> SequenceProbs:
    """The distribution of the first `horizon` new tokens of a pipeline.

    The target, drafter and controller must be functions of their inputs (oracles). The clock may be
    a ScriptedClock, which restarts at each round. The cost grows with the outcomes of a round: keep
    the vocabulary to 4 tokens, trees to depth 2 and 4 nodes, and the horizon small.

    Args:
        pipeline: A pipeline whose target is an OracleTarget, or its engine.
        prompt: Token ids.
        horizon: Number of new tokens.
        **conditions: See `Conditions`.

    Returns:
        Probability by sequence of new tokens.

    Raises:
        TestingError: If one key of the randomness is used for two draws.
    """
    engine, options, processors = _resolve(pipeline, conditions)
    options = evolve(options, max_new_tokens=horizon)
    machine = engine.machine
    stops = tuple(conditions.get("stops", ()))
    request = Request(tuple(prompt), options, Enumerating(), processors, stops)
    level = [(1.0, _State(engine.open(request), machine))]
    probs: SequenceProbs = {}
    try:
        while level:
            merged: dict[tuple[object, ...], tuple[float, _State]] = {}
            for weight, state in level:
                if state.run.finish_reason is not None:
                    tokens = tuple(state.run.new_ids)
                    probs[tokens] = probs.get(tokens, 0.0) + weight
                    continue
                for probability, after in _round(engine, state):
                    mass, kept = merged.get(after.merge_key, (0.0, after))
                    closed = kept.closed_keys | after.closed_keys
                    if closed != kept.closed_keys:
                        kept = evolve(kept, closed_keys=closed)
                    merged[after.merge_key] = (mass + weight * probability, kept)
            level = list(merged.values())
    finally:
        engine.machine = machine
    return probs


def _round(engine: Engine, state: _State) -> list[tuple[float, _State]]:
    def experiment(rng: Enumerating) -> _State:
        engine.machine = state.machine
        if isinstance(engine.clock, ScriptedClock):
            engine.clock.restart()
        run = state.run.fork()
        run.request = evolve(run.request, randomness=rng)
        engine.step([run])
        return _State(run, engine.machine)

    results = []
    for probability, after, rng in outcomes(experiment, state.open_keys | state.closed_keys):
        # Correct code cannot draw a key of a committed position again, whatever the path was: such
        # keys need not keep states apart.
        still_open = frozenset(key for key in rng.used if key[1] >= len(after.run.ids))
        closed = frozenset(rng.used) - still_open
        results.append((probability, evolve(after, open_keys=still_open, closed_keys=closed)))
    return results


def target_distribution(
    target: OracleTarget,
    prompt: Sequence[int],
    horizon: int,
    options: GenerationOptions,
    processors: Sequence[Processor] = (),
) -> SequenceProbs:
    """The distribution of `horizon` new tokens under the target alone.

    Processors are applied with each prefix, then temperature and filters.
    """
    probs: SequenceProbs = {(): 1.0}
    for _ in range(horizon):
        longer: SequenceProbs = {}
        for tokens, weight in probs.items():
            prefix = (*prompt, *tokens)
            scores = target.logits(prefix)[None]
            for processor in processors:
                scores = processor(torch.tensor([prefix]), scores)
            conditional = sampling_probs(scores[0], options.sampling).tolist()
            for token, probability in enumerate(conditional):
                if probability > 0:
                    longer[*tokens, token] = weight * probability
        probs = longer
    return probs


def total_variation(one: SequenceProbs, other: SequenceProbs) -> float:
    """Half the sum of absolute differences of two distributions."""
    support = one.keys() | other.keys()
    return sum(abs(one.get(x, 0.0) - other.get(x, 0.0)) for x in support) / 2


@frozen
class DecidingPath:
    """Where in which round a verdict decided a token.

    Attributes:
        round: 0-based index.
        tokens: Of the tree's nodes, the anchor first.
        parents: Of the nodes.
        accepted: Nodes accepted up to the one after which the token came.
    """

    round: int
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    accepted: tuple[int, ...]

    def __str__(self) -> str:
        return (
            f"decided in round {self.round}, {len(self.accepted) - 1} drafts deep: accepted nodes "
            f"{list(self.accepted)} of the tree of tokens {list(self.tokens)} with parents "
            f"{list(self.parents)}"
        )


class _PathRecorder(Verifier):
    """Records the longest path by which another verifier decides the token after `prefix`."""

    def __init__(self, inner: Verifier, prefix: Prefix) -> None:
        self.inner, self.prefix = inner, prefix
        self.longest: DecidingPath | None = None

    def judge(self, distributions: NodeDistributions, tree: TokenTree, rng: Randomness) -> Verdict:
        verdict = self.inner.judge(distributions, tree, rng)
        assert isinstance(distributions, TargetDistributions)
        depth = len(self.prefix) - distributions.position(0)
        last = verdict.accepted[-1]
        if (
            0 <= depth < len(verdict.accepted)
            and distributions.ids(last)[: len(self.prefix)] == list(self.prefix)
            and (self.longest is None or depth >= len(self.longest.accepted))
        ):
            self.longest = DecidingPath(
                distributions.round,
                tuple(tree.token_list),
                tuple(tree.parent_list),
                verdict.accepted[: depth + 1],
            )
        return verdict


@frozen
class Comparison:
    """A pipeline's distribution beside its target's.

    Attributes:
        max_error: Largest difference of the probability of one sequence.
        prompt: Token ids.
        prefix: The first new tokens after which the next-token distribution is wrong; None if it is
            right everywhere.
        output_probs: The pipeline's distribution after `prefix`.
        target_probs: The target's distribution after `prefix`.
        sequences: Number of sequences compared.
        path: The longest path by which a verdict decided the token after `prefix`; None if no
            verdict did.
    """

    max_error: float
    prompt: tuple[int, ...]
    prefix: tuple[int, ...] | None
    output_probs: TokenProbs
    target_probs: TokenProbs
    sequences: int
    path: "DecidingPath | None" = None

    def __str__(self) -> str:
        difference = f"(largest difference {self.max_error:.3g})"
        if self.prefix is None:
            return f"the output distribution is the target's {difference}"
        rows = [
            f"    token {token}: {self.output_probs.get(token, 0.0):.6f} "
            f"where the target gives {self.target_probs.get(token, 0.0):.6f}"
            for token in sorted(self.output_probs.keys() | self.target_probs.keys())
        ]
        return "\n".join(
            [
                f"the output distribution is not the target's {difference};",
                f"  the first wrong prefix is {list(self.prompt)} + {list(self.prefix)}, after it:",
                *rows,
                *([f"  {self.path}"] if self.path else []),
            ]
        )


def compare(
    pipeline: Engine | Pipeline,
    prompt: Sequence[int],
    horizon: int,
    **conditions: Unpack[Conditions],
) -> Comparison:
    """Compare the exact distribution of `pipeline` with its target's; see `exact_distribution`."""
    engine, options, processors = _resolve(pipeline, conditions)
    assert isinstance(engine.target, OracleTarget), "exact distributions need an OracleTarget"
    output = exact_distribution(engine, prompt, horizon, options=options, processors=processors)
    target = target_distribution(engine.target, prompt, horizon, options, processors)
    sequences = output.keys() | target.keys()
    error = max(abs(output.get(x, 0.0) - target.get(x, 0.0)) for x in sequences)
    at: tuple[Prefix | None, TokenProbs, TokenProbs] = (None, {}, {})
    if error <= TOLERANCE:
        return Comparison(error, tuple(prompt), *at, len(sequences))
    at = _first_difference(output, target, horizon)
    prefix = (*prompt, *(at[0] or ()))
    engine.verifier, verifier = _PathRecorder(engine.verifier, prefix), engine.verifier
    try:
        exact_distribution(engine, prompt, horizon, options=options, processors=processors)
        path = engine.verifier.longest
    finally:
        engine.verifier = verifier
    return Comparison(error, tuple(prompt), *at, len(sequences), path)


def assert_lossless(
    pipeline: Engine | Pipeline,
    prompt: Sequence[int],
    horizon: int,
    **conditions: Unpack[Conditions],
) -> None:
    """Check that a pipeline's output distribution is its target's; see `exact_distribution`.

    Raises:
        AssertionError: If a probability differs by more than TOLERANCE. The message shows the first
            prefix whose next-token distribution is wrong, with both distributions.
    """
    comparison = compare(pipeline, prompt, horizon, **conditions)
    if comparison.prefix is not None:
        raise AssertionError(str(comparison))


def _resolve(
    pipeline: Engine | Pipeline, conditions: Conditions
) -> tuple[Engine, GenerationOptions, tuple[Processor, ...]]:
    """The engine, with every condition filled in."""
    options, processors = conditions.get("options"), tuple(conditions.get("processors", ()))
    if isinstance(pipeline, Pipeline):
        return pipeline.engine, options or pipeline.generation, processors
    return pipeline, options or GenerationOptions(temperature=1.0), processors


def _first_difference(
    output: SequenceProbs, target: SequenceProbs, horizon: int
) -> tuple[Prefix, TokenProbs, TokenProbs]:
    # The error of a sequence is at most the sum of the errors of its conditionals.
    bound = TOLERANCE / horizon
    for length in range(horizon):
        prefixes = {tokens[:length] for tokens in output.keys() | target.keys()}
        for prefix in sorted(prefixes):
            ours, theirs = _conditional(output, prefix), _conditional(target, prefix)
            tokens = ours.keys() | theirs.keys()
            if any(abs(ours.get(t, 0.0) - theirs.get(t, 0.0)) > bound for t in tokens):
                return prefix, ours, theirs
    raise AssertionError("two different distributions have no prefix at which they differ")


def _conditional(probs: SequenceProbs, prefix: Prefix) -> TokenProbs:
    length = len(prefix)
    masses: TokenProbs = {}
    for tokens, weight in probs.items():
        if tokens[:length] == prefix and len(tokens) > length:
            masses[tokens[length]] = masses.get(tokens[length], 0.0) + weight
    total = sum(masses.values()) or 1.0
    return {token: mass / total for token, mass in sorted(masses.items())}
