"""The bundled tree policies. Imports no torch."""

from collections.abc import Iterable
from typing import Any

from draftwood.core.hookspecs import hookimpl
from draftwood.core.plugin import Draws, Plugin, TreeTraits
from draftwood.plugins.trees.options import (
    BestFirstOptions,
    ChainOptions,
    DynamicOptions,
    SampledOptions,
    StaticOptions,
)


def _scored(options: Any) -> TreeTraits:
    """Nodes are chosen by scores; any form of law will do."""
    return TreeTraits(Draws.DETERMINISTIC)


@hookimpl
def draftwood_register_trees() -> Iterable[Plugin]:
    home = "draftwood.plugins.trees"
    return [
        Plugin(
            "best_first",
            "the nodes of highest path score, any budget (BASTION)",
            BestFirstOptions,
            f"{home}.best_first:BestFirst",
            _scored,
        ),
        Plugin(
            "chain",
            "one path: the best token after the best token",
            ChainOptions,
            f"{home}.chain:Chain",
            _scored,
        ),
        Plugin(
            "dynamic",
            "a beam of each level, then the best nodes of all (EAGLE-2, EAGLE-3)",
            DynamicOptions,
            f"{home}.dynamic:Dynamic",
            _scored,
        ),
        Plugin(
            "sampled",
            "chains and trees drawn from the drafter's law, for the rejection rules",
            SampledOptions,
            f"{home}.sampled:Sampled",
            lambda options: TreeTraits(options.draws),
        ),
        Plugin(
            "static",
            "one shape for every round, by name or rank paths (EAGLE)",
            StaticOptions,
            f"{home}.static:Static",
            _scored,
        ),
    ]
