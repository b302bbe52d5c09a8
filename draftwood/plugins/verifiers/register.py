"""Registers the bundled verifiers."""

from draftwood.core.hookspecs import hookimpl
from draftwood.core.plugin import Draws, Plugin, VerifierTraits
from draftwood.plugins.verifiers.options import MatchOptions


@hookimpl
def draftwood_register_verifiers() -> list[Plugin]:
    return [
        Plugin(
            name="match",
            summary="draws from the target and follows the tree where it agrees; same seed, same text",
            options=MatchOptions,
            factory="draftwood.plugins.verifiers.match:Match",
            traits=lambda options: VerifierTraits(draws=frozenset(Draws), seed_parity=True),
        )
    ]
