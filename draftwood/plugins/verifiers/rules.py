"""The draws that each bundled rule verifies. Imports no torch."""

from collections.abc import Mapping

from draftwood.core.draws import Draws

EVERY = frozenset(Draws)
DRAWN = EVERY - {Draws.DETERMINISTIC}

RULE_DRAWS: Mapping[str, frozenset[Draws]] = {
    "match": EVERY,
    "ratio": frozenset({Draws.CHAIN}),
    "multi_round": DRAWN,
    "traversal": DRAWN,
}
"""Rule -> the trees whose output distribution it preserves, by how their nodes are chosen."""

SEED_PARITY = frozenset({"match"})
"""The rules with which a seed gives plain decoding's tokens, whatever the tree."""
