"""The bundled rules as verifiers on the host."""

from collections.abc import Callable, Mapping

from draftwood.core.interfaces import Verifier
from draftwood.plugins.verifiers.match import Match
from draftwood.plugins.verifiers.multi_round import MultiRound
from draftwood.plugins.verifiers.ratio import Ratio
from draftwood.plugins.verifiers.traversal import Traversal

HOST_RULES: Mapping[str, Callable[[], Verifier]] = {
    "match": Match,
    "ratio": Ratio,
    "multi_round": MultiRound,
    "traversal": Traversal,
}
"""The names are those of `rules.RULE_DRAWS`."""
