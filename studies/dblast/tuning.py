"""The prior temperature Z_T of a mixture that accepts most drafts, for a tree policy and a rule.

DBlast (arXiv 2608.05448) tunes Z_T per target temperature on a calibration set and does not say
how. Here the trees of every Z_T are grown at every round of the same texts, and what the rule
accepts of them is computed, not drawn (`studies.dblast.replay`): candidates differ by Z_T alone.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import asdict, evolve

from draftwood.bench.statistics import rate, speedup
from draftwood.core.errors import RequestError
from draftwood.core.interfaces import TreePolicy
from draftwood.core.proposals import MixtureProposal, Proposal
from draftwood.core.randomness import Randomness
from draftwood.core.tree import TokenTree
from draftwood.core.values import Limits
from draftwood.plugins.trees.branches import Lottery
from studies.dblast.methods import lottery
from studies.dblast.replay import GrowTrees, MethodTrees, RoundAcceptance, RoundTrees

TRAINED = 1.0
"""Z_T of the prior as trained; 0 always chooses the most likely branch."""


def candidate_trees(
    policy: TreePolicy, rule: str, limits: Limits, grid: Sequence[float], draws: int
) -> GrowTrees:
    """Grow the trees of every Z_T, all with the same random numbers.

    Args:
        policy: The pipeline's.
        rule: The pipeline's.
        limits: Of each tree.
        grid: Values of Z_T.
        draws: Trees for each Z_T, where the policy draws; the lottery is exact over its draw.
    """

    def grown(
        anchor: int, mixture: MixtureProposal, rng: Randomness
    ) -> list[tuple[float, TokenTree]]:
        if isinstance(policy, Lottery):
            length = min(limits.nodes, policy.options.length or limits.nodes, mixture.max_depth)
            return lottery(anchor, mixture, length)
        trees = [
            policy.grow(anchor, mixture, limits, lambda tree: True, rng.stream(str(n)))
            for n in range(draws)
        ]
        return [(1 / draws, tree) for tree in trees]

    def grow(anchor: int, proposals: Sequence[Proposal], rng: Randomness) -> RoundTrees:
        (mixture,) = proposals
        if not isinstance(mixture, MixtureProposal):
            raise RequestError("only the drafter dblast has a prior temperature")
        return RoundTrees(
            {
                str(z_t): MethodTrees(
                    rule, grown(anchor, evolve(mixture, prior_temperature=z_t), rng)
                )
                for z_t in grid
            }
        )

    return grow


def curve(
    temperature: float,
    prompts: Mapping[str, Sequence[RoundAcceptance]],
    grid: Sequence[float],
    seed: int,
) -> dict[str, Any]:
    """Accepted drafts of each Z_T at one target temperature, and the best Z_T."""
    rounds = {name: text for name, text in prompts.items() if text}
    if not rounds:
        raise RequestError("no round had room for a whole draft; raise --tokens")
    sums = {z_t: _sums(rounds, z_t) for z_t in grid}
    points = [{"z_t": z_t, **_rate(sums[z_t], seed)} for z_t in grid]
    best = max(points, key=lambda point: (point["value"], -abs(point["z_t"] - TRAINED)))["z_t"]
    base = sums[TRAINED] if TRAINED in sums else sums[grid[0]]
    gain = speedup(sums[best], base, seed) if sum(amount for amount, _ in base) > 0 else None
    return {
        "temperature": temperature,
        "prompts": len(rounds),
        "rounds": sum(map(len, rounds.values())),
        "points": points,
        "best": best,
        "gain": None if gain is None else asdict(gain),
    }


def _sums(rounds: Mapping[str, Sequence[RoundAcceptance]], z_t: float) -> list[tuple[float, float]]:
    return [
        (sum(each.accepted[str(z_t)] for each in text), float(len(text)))
        for text in rounds.values()
    ]


def _rate(sums: Sequence[tuple[float, float]], seed: int) -> dict[str, Any]:
    amounts, counts = zip(*sums, strict=True)
    return asdict(rate(amounts, counts, seed))
