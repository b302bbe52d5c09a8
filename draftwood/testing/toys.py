"""Toy parts for exact distributions: seeded random distributions over a few tokens, in every form,
and a controller that does everything the contract allows.

All of it depends on seeds alone, so a failure is repeated by its name.
"""

import hashlib
import random
from collections.abc import Callable, Mapping
from functools import cache
from typing import Literal

import torch
from attrs import frozen
from torch import Tensor

from draftwood.core.interfaces import BudgetController, ControllerState, CostProbe
from draftwood.core.options import Sampling
from draftwood.core.proposals import Factorized, LookupPaths, Markov, Mixture, Proposal, Vocabulary
from draftwood.core.registry.plugin import ProposalForm
from draftwood.core.tree import TokenTree
from draftwood.core.values import Limits, RoundContext, RoundStats
from draftwood.testing.oracle import OracleDrafter, OracleTarget, Prefix
from draftwood.testing.proposals import Autoregressive, Path

VOCAB = 3
DEPTH = 2

Kind = Literal["distinct", "repeated", "never"]


def seeded(*key: object) -> random.Random:
    """A generator that depends on the key alone, in every process."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return random.Random(int.from_bytes(digest, "little"))


def toy_target(seed: int = 0, vocab: int = VOCAB) -> OracleTarget:
    """Distributions from nearly flat to nearly certain, some tokens impossible."""

    def probs(prefix: Prefix) -> list[float]:
        rng = seeded("target", seed, prefix)
        weights = [rng.random() ** rng.choice((1, 3, 8)) for _ in range(vocab)]
        if rng.random() < 0.2:
            weights[rng.randrange(vocab)] = 0.0
        return [w + 1e-3 * (sum(weights) == 0) for w in weights]

    return OracleTarget(vocab, probs)


def toy_drafter(
    form: ProposalForm, seed: int = 0, depth: int = DEPTH, vocab: int = VOCAB
) -> OracleDrafter:
    """A drafter whose proposals have this form of distribution, unrelated to any target's.

    depth: of its deepest node. Distributions differ from prefix to prefix; some are sharp, some
    flat, and some give a token no chance that a target may well say."""

    @cache
    def propose(prefix: Prefix, sampling: Sampling) -> Proposal:
        return toy_proposal(form, (seed, prefix), sampling, depth, vocab)

    return OracleDrafter(propose)


def toy_mixtures(
    branches: int,
    kind: Kind = "distinct",
    seed: int = 0,
    depth: int = DEPTH,
    vocab: int = VOCAB,
) -> OracleDrafter:
    """A drafter of mixtures of so many branches.

    kind: distinct; repeated, where the last branch is the first once more; or never, where the
    last branch has no weight, and is far from the others.
    """

    @cache
    def propose(prefix: Prefix, sampling: Sampling) -> Proposal:
        key = (branches, seed, prefix)
        prior = _logits((1, branches), "prior", key).nan_to_num(neginf=-1.0)[0]
        logits = _logits((branches, depth, vocab), "branches", key)
        if kind == "repeated":
            logits[-1] = logits[0]
        if kind == "never":
            prior[-1] = -torch.inf
        z_t = seeded("prior temperature", key).choice((0.5, 1.0, 2.0))
        return Mixture(prior, logits, sampling, Vocabulary(vocab), z_t)

    return OracleDrafter(propose)


def toy_proposal(
    form: ProposalForm, key: object, sampling: Sampling, depth: int = DEPTH, vocab: int = VOCAB
) -> Proposal:
    """One proposal of this form. key: anything with a repr, which its distributions depend on."""
    return _FORMS[form](key, sampling, depth, vocab)


def _logits(shape: tuple[int, ...], *key: object) -> Tensor:
    """Random logits, flat to sharp; in one row of five some token has no chance."""
    rng = seeded(*key)
    spread = rng.choice((0.3, 1.0, 4.0))
    values = torch.empty(shape, dtype=torch.float64)
    for row in values.view(-1, shape[-1]):
        for i in range(shape[-1]):
            row[i] = rng.gauss(0, spread)
        if rng.random() < 0.2:
            row[rng.randrange(shape[-1])] = -torch.inf
    return values


def _factorized(key: object, sampling: Sampling, depth: int, vocab: int) -> Proposal:
    return Factorized(_logits((depth, vocab), "factorized", key), sampling, Vocabulary(vocab))


def _mixture(key: object, sampling: Sampling, depth: int, vocab: int) -> Proposal:
    """Three branches, of which at times one is never taken and at times two are the same."""
    rng = seeded("mixture", key)
    prior, logits = _logits((3,), "prior", key), _logits((3, depth, vocab), "branches", key)
    if rng.random() < 0.3:
        logits[1] = logits[0]
    return Mixture(prior, logits, sampling, Vocabulary(vocab), rng.choice((0.5, 1.0, 2.0)))


def _markov(key: object, sampling: Sampling, depth: int, vocab: int) -> Proposal:
    rng = seeded("candidates", key)
    width = max(2, vocab - 1)
    candidates = torch.tensor([rng.sample(range(vocab), width) for _ in range(depth)])
    first = _logits((width,), "first", key)
    pair = _logits((depth - 1, width, width), "pair", key)
    return Markov(candidates, first, pair, sampling, vocab)


def _autoregressive(key: object, sampling: Sampling, depth: int, vocab: int) -> Proposal:
    @cache
    def logits(path: Path) -> Tensor:
        return _logits((vocab,), "autoregressive", key, path)

    return Autoregressive(logits, depth, sampling)


def _points(key: object, sampling: Sampling, depth: int, vocab: int) -> Proposal:
    rng = seeded("lookup", key)
    paths = {tuple(rng.randrange(vocab) for _ in range(depth)) for _ in range(2)}
    return LookupPaths(tuple(sorted(paths)), sampling, vocab)


_FORMS: Mapping[str, Callable[[object, Sampling, int, int], Proposal]] = {
    "factorized": _factorized,
    "mixture": _mixture,
    "markov": _markov,
    "autoregressive": _autoregressive,
    "lookup": _points,
}


class Adversary(BudgetController[int, int]):
    """Budgets that depend on everything a controller may see: committed counts, the last verdict
    and the tree's own tokens, in a way that has nothing to do with speed."""

    def init(self, costs: CostProbe) -> int:
        return 1

    def open(self) -> int:
        return 2

    def before_draft(self, ctx: RoundContext, state: ControllerState[int, int]) -> Limits:
        return Limits((ctx.context + state.machine + 2 * state.request) % 5)

    def should_expand(
        self, growth: TokenTree, ctx: RoundContext, state: ControllerState[int, int]
    ) -> bool:
        return (sum(growth.token_list) + state.machine) % 3 != 0

    def choose(self, tree: TokenTree, ctx: RoundContext, state: ControllerState[int, int]) -> int:
        return (sum(tree.token_list) + state.request) % (tree.nodes + 1)

    def observe(
        self, stats: RoundStats, state: ControllerState[int, int]
    ) -> ControllerState[int, int]:
        return ControllerState(
            (state.machine + stats.accepted) % 2, (state.request + stats.verdict.bonus) % 3
        )


@frozen
class RepetitionPenalty:
    """Tokens of the text so far are less likely: a processor that sees each node's own path.

    Divides positive scores by `penalty` and multiplies negative ones (Keskar et al. 2019), as the
    processor of that name does in Hugging Face's generate.
    """

    penalty: float = 1.5

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        seen = ids[0].unique()
        row = scores[0, seen]
        lower = torch.where(row < 0, row * self.penalty, row / self.penalty)
        return scores.index_copy(1, seen, lower[None])
