"""Toy pipelines for exact laws: small vocabularies, seeded random laws, adversarial budgets."""

import hashlib
import random

import torch

from draftwood.core.engine import Engine
from draftwood.core.interfaces import BudgetController, ControllerState, CostProbe, Verifier
from draftwood.core.options import Sampling
from draftwood.core.proposals import Factorized, Markov, Points, Proposal, Vocabulary
from draftwood.core.values import Limits, RoundContext, RoundStats, TokenTree
from draftwood.plugins.verifiers.match import Match
from draftwood.testing import OracleDrafter, OracleTarget, ScriptedClock

VOCAB = 3


def seeded(*key: object) -> random.Random:
    """A generator that depends on the key alone, in every process."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return random.Random(int.from_bytes(digest, "little"))


def spiky_target(seed: int, vocab: int = VOCAB) -> OracleTarget:
    """Laws from nearly flat to nearly certain, some tokens impossible."""

    def law(prefix: tuple[int, ...]) -> list[float]:
        rng = seeded("target", seed, prefix)
        weights = [rng.random() ** rng.choice((1, 3, 8)) for _ in range(vocab)]
        if rng.random() < 0.3:
            weights[rng.randrange(vocab)] = 0.0
        return [w + 1e-3 * (sum(weights) == 0) for w in weights]

    return OracleTarget(vocab, law)


def _logits(shape: tuple[int, ...], *key: object) -> torch.Tensor:
    rng = seeded(*key)
    count = int(torch.tensor(shape).prod())
    values = [rng.gauss(0, 2) for _ in range(count)]
    return torch.tensor(values, dtype=torch.float64).reshape(shape)


def factorized(seed: int, depth: int = 2) -> OracleDrafter:
    def propose(prefix: tuple[int, ...], sampling: Sampling) -> Proposal:
        logits = _logits((depth, VOCAB), "factorized", seed, prefix)
        return Factorized(logits, sampling, Vocabulary(VOCAB))

    return OracleDrafter(propose)


def markov(seed: int, depth: int = 2) -> OracleDrafter:
    def propose(prefix: tuple[int, ...], sampling: Sampling) -> Proposal:
        rng = seeded("candidates", seed, prefix)
        candidates = torch.tensor([rng.sample(range(VOCAB), 2) for _ in range(depth)])
        first = _logits((2,), "first", seed, prefix)
        pair = _logits((depth - 1, 2, 2), "pair", seed, prefix)
        return Markov(candidates, first, pair, sampling, VOCAB)

    return OracleDrafter(propose)


def points(seed: int, depth: int = 2) -> OracleDrafter:
    def propose(prefix: tuple[int, ...], sampling: Sampling) -> Proposal:
        rng = seeded("points", seed, prefix)
        paths = {tuple(rng.randrange(VOCAB) for _ in range(depth)) for _ in range(2)}
        return Points(tuple(sorted(paths)), sampling, VOCAB)

    return OracleDrafter(propose)


DRAFTERS = {"factorized": factorized, "markov": markov, "points": points}


class Adversary(BudgetController[int, int]):
    """Budgets that depend on everything a controller may see: committed counts, the last verdict
    and the tree's own tokens, in a way that has nothing to do with speed."""

    def init(self, costs: CostProbe) -> int:
        return 1

    def open(self) -> int:
        return 2

    def before_draft(self, ctx: RoundContext, state: ControllerState[int, int]) -> Limits:
        return Limits((ctx.context + state.machine + 2 * state.request) % 5)

    def choose(self, tree: TokenTree, ctx: RoundContext, state: ControllerState[int, int]) -> int:
        return (sum(tree.token_list) + state.request) % (tree.nodes + 1)

    def observe(
        self, stats: RoundStats, state: ControllerState[int, int]
    ) -> ControllerState[int, int]:
        return ControllerState(
            (state.machine + stats.accepted) % 2, (state.request + stats.verdict.bonus) % 3
        )


def engine(
    drafter: OracleDrafter,
    tree: object,
    controller: object,
    seed: int = 0,
    verifier: Verifier | None = None,
    clock: ScriptedClock | None = None,
) -> Engine:
    return Engine(
        spiky_target(seed),
        verifier or Match(),
        drafter,
        tree,  # type: ignore[arg-type]
        controller,  # type: ignore[arg-type]
        clock or ScriptedClock((1e-3, 2e-3, 5e-4)),
    )
