"""A drafter that knows the text to come, and is wrong at a seeded share of its positions."""

import random
from collections.abc import Sequence

import torch

from draftwood.core.options import Sampling
from draftwood.core.proposals import FactorizedProposal, MixtureProposal, Proposal, Vocabulary
from draftwood.testing import OracleDrafter

DEPTH = 7
SURE, SECOND = 6.0, 5.0
"""Logits of the best and second token, above noise of unit size: trees branch at both."""


def scripted(
    text: Sequence[int], vocab: int, errors: float = 0.35, depth: int = DEPTH, seed: int = 0
) -> OracleDrafter:
    """Proposes `text`, prompt included, position by position, whatever was committed.

    At a share `errors` of positions the true token is second, where only a tree finds it, or (one
    time in three) has no place among the likely ones.
    """
    logits = _scores(text, vocab, errors, depth, seed)

    def propose(prefix: tuple[int, ...], sampling: Sampling) -> Proposal:
        rows = logits[len(prefix) : len(prefix) + depth]
        return FactorizedProposal(rows, sampling, Vocabulary(vocab))

    return OracleDrafter(propose)


def scripted_mixture(
    text: Sequence[int], vocab: int, branches: int = 3, errors: float = 0.35, depth: int = DEPTH
) -> OracleDrafter:
    """The same from several branches, each wrong at positions of its own."""
    every = torch.stack([_scores(text, vocab, errors, depth, seed) for seed in range(branches)])
    prior = torch.linspace(0.0, 1.0, branches)

    def propose(prefix: tuple[int, ...], sampling: Sampling) -> Proposal:
        rows = every[:, len(prefix) : len(prefix) + depth]
        return MixtureProposal(prior, rows, sampling, Vocabulary(vocab), 0.7)

    return OracleDrafter(propose)


def _scores(text: Sequence[int], vocab: int, errors: float, depth: int, seed: int) -> torch.Tensor:
    """(positions, V) logits, a row for the token at each position."""
    rng = random.Random(seed)
    noise = torch.Generator().manual_seed(seed)
    padded = [*text, *(0 for _ in range(depth))]
    logits = torch.randn(len(padded), vocab, generator=noise)
    for position, token in enumerate(padded):
        other = (token + rng.randrange(1, vocab)) % vocab
        ranks = [token, other]
        if rng.random() < errors:
            ranks = [other, token if rng.random() < 2 / 3 else (other + 1) % vocab]
        logits[position, ranks[0]], logits[position, ranks[1]] = SURE, SECOND
    return logits
