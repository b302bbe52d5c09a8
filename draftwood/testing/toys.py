"""Toy parts for exact distributions: seeded random distributions over a few tokens.

Everything here depends on seeds alone, so that a failure is repeated by its name.
"""

import hashlib
import random
from collections.abc import Callable, Mapping
from functools import cache
from typing import Literal

import torch
from attrs import frozen
from torch import Tensor

from draftwood.core.options import Sampling
from draftwood.core.proposals import (
    FactorizedProposal,
    LookupPaths,
    MarkovProposal,
    MixtureProposal,
    Proposal,
    Vocabulary,
)
from draftwood.core.registry.plugin import ProposalForm
from draftwood.testing.oracle import OracleDrafter, OracleTarget, Prefix
from draftwood.testing.proposals import AutoregressiveProposal, Path

VOCAB = 3
DEPTH = 2

MixtureKind = Literal["distinct", "repeated", "never"]


def seeded(*key: object) -> random.Random:
    """A generator that depends on the key's repr alone, in every process."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return random.Random(int.from_bytes(digest, "little"))


def toy_target(seed: int = 0, vocab: int = VOCAB, ties: bool = False) -> OracleTarget:
    """A target whose distributions are nearly flat to nearly certain, some tokens impossible.

    ties: several tokens are equally likely, often the most likely ones.
    """

    def probs(prefix: Prefix) -> list[float]:
        rng = seeded("target", seed, prefix)
        if ties:
            return [float(rng.choice((1, 2, 2))) for _ in range(vocab)]
        weights = [rng.random() ** rng.choice((1, 3, 8)) for _ in range(vocab)]
        if rng.random() < 0.2:
            weights[rng.randrange(vocab)] = 0.0
        return [w + 1e-3 * (sum(weights) == 0) for w in weights]

    return OracleTarget(vocab, probs)


def toy_drafter(
    form: ProposalForm, seed: int = 0, depth: int = DEPTH, vocab: int = VOCAB
) -> OracleDrafter:
    """A drafter of proposals of one form, unrelated to any target.

    Distributions differ from prefix to prefix. Some are sharp, some flat, and some give probability
    zero to a token that a target may well draw.
    """

    @cache
    def propose(prefix: Prefix, sampling: Sampling) -> Proposal:
        return toy_proposal(form, (seed, prefix), sampling, depth, vocab)

    return OracleDrafter(propose)


def toy_mixtures(
    branches: int,
    kind: MixtureKind = "distinct",
    seed: int = 0,
    depth: int = DEPTH,
    vocab: int = VOCAB,
) -> OracleDrafter:
    """A drafter of mixtures.

    Args:
        branches: Number of branches.
        kind: `distinct` branches; `repeated`, where the last branch equals the first; or `never`,
            where the last branch has prior zero and is far from the others.
        seed: Of all distributions.
        depth: Of the deepest node.
        vocab: Number of tokens.
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
        return MixtureProposal(prior, logits, sampling, Vocabulary(vocab), z_t)

    return OracleDrafter(propose)


def toy_proposal(
    form: ProposalForm, key: object, sampling: Sampling, depth: int = DEPTH, vocab: int = VOCAB
) -> Proposal:
    """One proposal of this form; its distributions depend on the repr of `key`."""
    return _FORMS[form](key, sampling, depth, vocab)


def _logits(shape: tuple[int, ...], *key: object) -> Tensor:
    """Random logits, flat to sharp; one row in five has a token of probability zero."""
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
    return FactorizedProposal(
        _logits((depth, vocab), "factorized", key), sampling, Vocabulary(vocab)
    )


def _mixture(key: object, sampling: Sampling, depth: int, vocab: int) -> Proposal:
    """Three branches; in some one has prior zero, in some two are equal."""
    rng = seeded("mixture", key)
    prior, logits = _logits((3,), "prior", key), _logits((3, depth, vocab), "branches", key)
    if rng.random() < 0.3:
        logits[1] = logits[0]
    return MixtureProposal(prior, logits, sampling, Vocabulary(vocab), rng.choice((0.5, 1.0, 2.0)))


def _markov(key: object, sampling: Sampling, depth: int, vocab: int) -> Proposal:
    rng = seeded("candidates", key)
    width = max(2, vocab - 1)
    candidates = torch.tensor([rng.sample(range(vocab), width) for _ in range(depth)])
    first = _logits((width,), "first", key)
    pair = _logits((depth - 1, width, width), "pair", key)
    return MarkovProposal(candidates, first, pair, sampling, vocab)


def _autoregressive(key: object, sampling: Sampling, depth: int, vocab: int) -> Proposal:
    @cache
    def logits(path: Path) -> Tensor:
        return _logits((vocab,), "autoregressive", key, path)

    return AutoregressiveProposal(logits, depth, sampling)


def _lookup(key: object, sampling: Sampling, depth: int, vocab: int) -> Proposal:
    rng = seeded("lookup", key)
    paths = {tuple(rng.randrange(vocab) for _ in range(depth)) for _ in range(max(2, vocab - 1))}
    return LookupPaths(tuple(sorted(paths)), sampling, vocab)


_FORMS: Mapping[str, Callable[[object, Sampling, int, int], Proposal]] = {
    "factorized": _factorized,
    "mixture": _mixture,
    "markov": _markov,
    "autoregressive": _autoregressive,
    "lookup": _lookup,
}


@frozen
class RepetitionPenalty:
    """A processor that makes the tokens of each node's own path less likely.

    It divides positive scores by `penalty` and multiplies negative ones (Keskar et al. 2019,
    arXiv 1909.05858), as the processor of that name does in Hugging Face's generate.
    """

    penalty: float = 1.5

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        seen = ids[0].unique()
        row = scores[0, seen]
        lower = torch.where(row < 0, row * self.penalty, row / self.penalty)
        return scores.index_copy(1, seen, lower[None])
