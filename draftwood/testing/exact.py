"""The exact output distribution of a whole pipeline on a toy vocabulary, in float64.

Every outcome of every draw is followed with its probability, round by round, and equal states are
merged after each round; the result is compared with the product of the target's own conditionals.
A horizon of the deepest path + 2 lets a second round start from every kind of verdict.
"""

from collections.abc import Sequence

import attrs
import torch
from attrs import frozen

from draftwood.core.distributions import sampling_probs
from draftwood.core.engine import Engine, Request, Run
from draftwood.core.generation import Pipeline
from draftwood.core.node_distributions import Processor
from draftwood.core.options import GenerationOptions
from draftwood.testing.enumeration import Enumerating, Key, outcomes
from draftwood.testing.oracle import OracleTarget, ScriptedClock

Distribution = dict[tuple[int, ...], float]
"""Probability of each sequence of new tokens."""

Conditional = dict[int, float]
"""Probability of each next token after some prefix."""

TOLERANCE = 1e-12


@frozen(eq=False)
class _State:
    """A run between rounds, and what outlives it: the controller's machine state.

    live: keys drawn at positions that are still open. past: all others, of every path that was
    merged into this one. No later draw may use either.
    """

    run: Run
    machine: object
    live: frozenset[Key] = frozenset()
    past: frozenset[Key] = frozenset()

    @property
    def key(self) -> tuple[object, ...]:
        run = self.run
        return (
            tuple(run.ids),
            run.finish_reason,
            run.stats.rounds,
            run.last_draft,
            run.controller_state,
            self.machine,
            self.live,
        )


def exact_distribution(
    pipeline: Engine | Pipeline,
    prompt: Sequence[int],
    horizon: int,
    options: GenerationOptions | None = None,
    processors: Sequence[Processor] = (),
) -> Distribution:
    """The distribution of the first `horizon` new tokens that `pipeline` gives: {tokens:
    probability}.

    options: temperature and filters, those of a Pipeline by default. The target, drafter and
    controller must be functions of their inputs (oracles); the clock may be a ScriptedClock, which
    restarts at each round. Cost grows with the leaves of a round: keep V <= 4, trees of depth <= 2
    and N <= 4, and the horizon small.

    Raises TestingError if a key of the randomness is used for two draws.
    """
    engine, options = _engine(pipeline), _options(pipeline, options)
    options = attrs.evolve(options, max_new_tokens=horizon)
    machine = engine.machine
    request = Request(tuple(prompt), options, Enumerating(), tuple(processors))
    level = [(1.0, _State(engine.open(request), machine))]
    probs: Distribution = {}
    try:
        while level:
            following: dict[tuple[object, ...], tuple[float, _State]] = {}
            for weight, state in level:
                if state.run.finish_reason is not None:
                    tokens = tuple(state.run.new_ids)
                    probs[tokens] = probs.get(tokens, 0.0) + weight
                    continue
                for probability, after in _round(engine, state):
                    mass, known = following.get(after.key, (0.0, after))
                    past = known.past | after.past
                    merged = attrs.evolve(known, past=past) if past != known.past else known
                    following[after.key] = (mass + weight * probability, merged)
            level = list(following.values())
    finally:
        engine.machine = machine
    return probs


def _round(engine: Engine, state: _State) -> list[tuple[float, _State]]:
    def experiment(rng: Enumerating) -> _State:
        engine.machine = state.machine
        if isinstance(engine.clock, ScriptedClock):
            engine.clock.restart()
        run = state.run.fork()
        run.request = attrs.evolve(run.request, randomness=rng)
        engine.step([run])
        return _State(run, engine.machine)

    results = []
    for probability, after, rng in outcomes(experiment, state.live | state.past):
        # A key of a committed position cannot be drawn again by right code, whatever the path
        # here: it need not keep states apart.
        live = frozenset(key for key in rng.used if key[1] >= len(after.run.ids))
        past = frozenset(rng.used) - live
        results.append((probability, attrs.evolve(after, live=live, past=past)))
    return results


def target_distribution(
    target: OracleTarget,
    prompt: Sequence[int],
    horizon: int,
    options: GenerationOptions,
    processors: Sequence[Processor] = (),
) -> Distribution:
    """The distribution of `horizon` tokens under the target alone: processors with each prefix,
    then temperature and filters."""
    probs: Distribution = {(): 1.0}
    for _ in range(horizon):
        longer: Distribution = {}
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


def total_variation(one: Distribution, other: Distribution) -> float:
    """Half the sum of absolute differences of two distributions."""
    support = one.keys() | other.keys()
    return sum(abs(one.get(x, 0.0) - other.get(x, 0.0)) for x in support) / 2


@frozen
class Comparison:
    """A pipeline's distribution beside its target's.

    max_error: largest difference of the probability of one sequence. prefix: the first prefix
    whose next-token distribution is wrong (prompt excluded), None if none is; found, wanted: the
    two distributions there, {token: probability}. sequences: how many were compared."""

    max_error: float
    prompt: tuple[int, ...]
    prefix: tuple[int, ...] | None
    found: dict[int, float]
    wanted: dict[int, float]
    sequences: int

    def __str__(self) -> str:
        if self.prefix is None:
            return (
                f"the output distribution is the target's (largest difference {self.max_error:.3g})"
            )
        rows = [
            f"    token {token}: {self.found.get(token, 0.0):.6f} "
            f"where the target gives {self.wanted.get(token, 0.0):.6f}"
            for token in sorted(self.found.keys() | self.wanted.keys())
        ]
        return "\n".join(
            [
                f"the output distribution is not the target's (largest difference "
                f"{self.max_error:.3g});",
                f"  the first wrong prefix is {list(self.prompt)} + {list(self.prefix)}, after it:",
                *rows,
            ]
        )


def compare(
    pipeline: Engine | Pipeline,
    prompt: Sequence[int],
    horizon: int,
    options: GenerationOptions | None = None,
    processors: Sequence[Processor] = (),
    tolerance: float = TOLERANCE,
) -> Comparison:
    """The exact distribution of `pipeline` beside its target's, and where they first differ."""
    engine, options = _engine(pipeline), _options(pipeline, options)
    assert isinstance(engine.target, OracleTarget), "exact distributions need an OracleTarget"
    found = exact_distribution(engine, prompt, horizon, options, processors)
    wanted = target_distribution(engine.target, prompt, horizon, options, processors)
    every = found.keys() | wanted.keys()
    error = max(abs(found.get(x, 0.0) - wanted.get(x, 0.0)) for x in every)
    prefix: tuple[int, ...] | None = None
    distributions: tuple[Conditional, Conditional] = ({}, {})
    if error > tolerance:
        prefix, distributions = _first_difference(found, wanted, horizon, tolerance)
    return Comparison(error, tuple(prompt), prefix, *distributions, len(every))


def assert_lossless(
    pipeline: Engine | Pipeline,
    prompt: Sequence[int],
    horizon: int,
    options: GenerationOptions | None = None,
    processors: Sequence[Processor] = (),
    tolerance: float = TOLERANCE,
) -> None:
    """Raise AssertionError unless the pipeline's output distribution is its target's, to
    `tolerance`.

    The message shows the first prefix whose conditional distribution is wrong, with both
    distributions."""
    comparison = compare(pipeline, prompt, horizon, options, processors, tolerance)
    if comparison.prefix is not None:
        raise AssertionError(str(comparison))


def _engine(pipeline: Engine | Pipeline) -> Engine:
    return pipeline.engine if isinstance(pipeline, Pipeline) else pipeline


def _options(pipeline: Engine | Pipeline, given: GenerationOptions | None) -> GenerationOptions:
    if given is None and isinstance(pipeline, Pipeline):
        return pipeline.generation
    return given or GenerationOptions(temperature=1.0)


def _first_difference(
    found: Distribution, wanted: Distribution, horizon: int, tolerance: float
) -> tuple[tuple[int, ...], tuple[Conditional, Conditional]]:
    least = tolerance / horizon  # a sequence's error is at most the sum of its conditionals'
    for length in range(horizon):
        prefixes = {tokens[:length] for tokens in found.keys() | wanted.keys()}
        for prefix in sorted(prefixes):
            ours, theirs = _conditional(found, prefix), _conditional(wanted, prefix)
            tokens = ours.keys() | theirs.keys()
            if any(abs(ours.get(t, 0.0) - theirs.get(t, 0.0)) > least for t in tokens):
                return prefix, (ours, theirs)
    raise AssertionError("two different distributions have no prefix at which they differ")


def _conditional(probs: Distribution, prefix: tuple[int, ...]) -> Conditional:
    at = len(prefix)
    masses: Conditional = {}
    for tokens, weight in probs.items():
        if tokens[:at] == prefix and len(tokens) > at:
            masses[tokens[at]] = masses.get(tokens[at], 0.0) + weight
    total = sum(masses.values()) or 1.0
    return {token: mass / total for token, mass in sorted(masses.items())}
