"""The bundled tree policies. Imports no torch."""

from collections.abc import Iterable
from typing import Any

from draftwood.core.draws import Draws
from draftwood.core.registry.hookspecs import hookimpl
from draftwood.core.registry.plugin import Plugin, TreeTraits
from draftwood.plugins.trees.options import (
    BestFirstOptions,
    BranchesOptions,
    ChainOptions,
    DynamicOptions,
    LotteryOptions,
    SampledOptions,
    StaticOptions,
)


def _scored(options: Any) -> TreeTraits:
    """Nodes are chosen by path scores, over every form of proposal."""
    return TreeTraits(Draws.DETERMINISTIC)


MIXTURE = frozenset({"mixture"})


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
            "branches",
            "the greedy branches of a mixture, merged into one tree",
            BranchesOptions,
            f"{home}.branches:Branches",
            lambda options: TreeTraits(Draws.DETERMINISTIC, MIXTURE),
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
            "lottery",
            "one greedy branch of a mixture, drawn from its prior (DBlast as published)",
            LotteryOptions,
            f"{home}.branches:Lottery",
            lambda options: TreeTraits(Draws.CHAIN, MIXTURE),
        ),
        Plugin(
            "sampled",
            "chains and trees drawn from the drafter's distribution, for the rejection rules",
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
