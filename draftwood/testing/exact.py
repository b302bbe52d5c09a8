"""The exact output law of a whole pipeline on a toy vocabulary, in float64.

Every outcome of every draw is followed with its probability, round by round, and equal states are
merged after each round; the result is compared with the product of the target's own conditionals.
A horizon of the deepest path + 2 lets a second round start from every kind of verdict.
"""

from collections.abc import Sequence

import attrs
import torch
from attrs import frozen

from draftwood.core.engine import Engine, Request, Run
from draftwood.core.laws import sampling_law
from draftwood.core.options import GenerationOptions
from draftwood.testing.enumeration import Enumerating, Key, outcomes
from draftwood.testing.oracle import OracleTarget, ScriptedClock

Law = dict[tuple[int, ...], float]


@frozen(eq=False)
class _State:
    """A run between rounds, and what outlives it: the controller's machine state."""

    run: Run
    machine: object
    used: frozenset[Key]

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
            self.used,
        )


def exact_law(
    engine: Engine, prompt: Sequence[int], horizon: int, options: GenerationOptions
) -> Law:
    """The law of the first `horizon` new tokens that `engine` gives: {tokens: probability}.

    The engine's target, drafter and controller must be functions of their inputs (oracles); its
    clock may be a ScriptedClock, which restarts at each round. Cost grows with the leaves of a
    round: keep V <= 4, trees of depth <= 2 and N <= 4, and the horizon small.
    """
    options = attrs.evolve(options, max_new_tokens=horizon)
    machine = engine.machine
    start = engine.open(Request(tuple(prompt), options, Enumerating()))
    level = {(): (1.0, _State(start, machine, frozenset()))}
    law: Law = {}
    try:
        while level:
            following: dict[tuple[object, ...], tuple[float, _State]] = {}
            for weight, state in level.values():
                if state.run.finish_reason is not None:
                    tokens = tuple(state.run.new_ids)
                    law[tokens] = law.get(tokens, 0.0) + weight
                    continue
                for probability, after in _round(engine, state):
                    known = following.get(after.key)
                    mass = weight * probability + (known[0] if known else 0.0)
                    following[after.key] = (mass, known[1] if known else after)
            level = following  # type: ignore[assignment]
    finally:
        engine.machine = machine
    return law


def _round(engine: Engine, state: _State) -> list[tuple[float, _State]]:
    def experiment(rng: Enumerating) -> _State:
        engine.machine = state.machine
        if isinstance(engine.clock, ScriptedClock):
            engine.clock.restart()
        run = state.run.fork()
        run.request = attrs.evolve(run.request, randomness=rng)
        engine.step([run])
        return _State(run, engine.machine, frozenset())

    results = []
    for probability, after, rng in outcomes(experiment, state.used):
        # Only keys that a later round could use again matter; the rest would hinder merging.
        live = frozenset(key for key in rng.used if key[1] >= len(after.run.ids))
        results.append((probability, attrs.evolve(after, used=live)))
    return results


def target_law(
    target: OracleTarget, prompt: Sequence[int], horizon: int, options: GenerationOptions
) -> Law:
    """The law of `horizon` tokens under the target alone, temperature and filters applied."""
    law: Law = {(): 1.0}
    for _ in range(horizon):
        longer: Law = {}
        for tokens, weight in law.items():
            logits = target.logits((*prompt, *tokens))
            conditional = sampling_law(logits, options.sampling).tolist()
            for token, probability in enumerate(conditional):
                if probability > 0:
                    longer[*tokens, token] = weight * probability
        law = longer
    return law


def total_variation(one: Law, other: Law) -> float:
    """Half the sum of absolute differences of two laws."""
    support = one.keys() | other.keys()
    return sum(abs(one.get(x, 0.0) - other.get(x, 0.0)) for x in support) / 2


def assert_lossless(
    engine: Engine,
    prompt: Sequence[int],
    horizon: int,
    options: GenerationOptions,
    tolerance: float = 1e-12,
) -> None:
    """Raise AssertionError unless the engine's output law is its target's, to `tolerance`.

    The message shows the first prefix whose conditional law is wrong, with both laws.
    """
    assert isinstance(engine.target, OracleTarget), "exact laws need an OracleTarget"
    found = exact_law(engine, prompt, horizon, options)
    wanted = target_law(engine.target, prompt, horizon, options)
    error = max(abs(found.get(x, 0.0) - wanted.get(x, 0.0)) for x in found.keys() | wanted.keys())
    if error <= tolerance:
        return
    for length in range(horizon):
        for prefix in sorted({tokens[:length] for tokens in wanted}):
            ours, theirs = (_conditional(law, prefix) for law in (found, wanted))
            if not torch.allclose(_dense(ours, engine), _dense(theirs, engine), atol=tolerance):
                raise AssertionError(
                    f"the output law is not the target's (largest difference {error:.3g}); the "
                    f"first wrong prefix is {list(prompt)} + {list(prefix)}:\n"
                    f"  this pipeline: {ours}\n  the target:    {theirs}"
                )
    raise AssertionError(f"the output law is not the target's: largest difference {error:.3g}")


def _conditional(law: Law, prefix: tuple[int, ...]) -> dict[int, float]:
    at = len(prefix)
    masses: dict[int, float] = {}
    for tokens, weight in law.items():
        if tokens[:at] == prefix and len(tokens) > at:
            masses[tokens[at]] = masses.get(tokens[at], 0.0) + weight
    total = sum(masses.values()) or 1.0
    return {token: mass / total for token, mass in sorted(masses.items())}


def _dense(law: dict[int, float], engine: Engine) -> torch.Tensor:
    dense = torch.zeros(engine.target.vocab_size, dtype=torch.float64)
    for token, probability in law.items():
        dense[token] = probability
    return dense
