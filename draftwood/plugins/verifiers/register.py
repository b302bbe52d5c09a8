"""Registers the bundled verifiers."""

from draftwood.core.hookspecs import hookimpl
from draftwood.core.plugin import Draws, Plugin, VerifierTraits
from draftwood.plugins.verifiers.options import (
    MatchOptions,
    MultiRoundOptions,
    RatioOptions,
    TraversalOptions,
)

SAMPLED = frozenset({Draws.CHAIN, Draws.IID, Draws.WITHOUT_REPLACEMENT})


@hookimpl
def draftwood_register_verifiers() -> list[Plugin]:
    return [
        Plugin(
            name="match",
            summary="draws from the target and follows the tree while it agrees; any tree",
            options=MatchOptions,
            factory="draftwood.plugins.verifiers.match:Match",
            traits=lambda options: VerifierTraits(draws=frozenset(Draws), seed_parity=True),
        ),
        Plugin(
            name="ratio",
            summary="accepts with min(1, p/q); chains sampled from the drafter",
            options=RatioOptions,
            factory="draftwood.plugins.verifiers.ratio:Ratio",
            traits=lambda options: VerifierTraits(draws=frozenset({Draws.CHAIN})),
        ),
        Plugin(
            name="multi_round",
            summary="p/q among siblings, each against what the others left; sampled trees",
            options=MultiRoundOptions,
            factory="draftwood.plugins.verifiers.multi_round:MultiRound",
            traits=lambda options: VerifierTraits(draws=SAMPLED),
        ),
        Plugin(
            name="traversal",
            summary="judges whole paths from the leaves; accepts most; sampled trees",
            options=TraversalOptions,
            factory="draftwood.plugins.verifiers.traversal:Traversal",
            traits=lambda options: VerifierTraits(draws=SAMPLED),
        ),
    ]
