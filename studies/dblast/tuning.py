"""Which prior temperature Z_T of a mixture accepts most, for a tree policy and a rule.

DBlast (arXiv 2608.05448) tunes Z_T per target temperature on a calibration set and leaves open
how. Here every candidate's trees are grown at every round of the same texts, and what the rule
accepts of them is computed, not drawn (`studies.dblast.offers`): candidates differ by Z_T alone.
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
from studies.dblast.mixtures import lottery
from studies.dblast.offers import Offer, Offered, Offering, Seen

TRAINED = 1.0
"""The prior as it was learnt; 0 would take the likeliest branch always."""


def offering(
    policy: TreePolicy, rule: str, limits: Limits, grid: Sequence[float], draws: int
) -> Offering:
    """Each candidate's trees. draws: trees for each, where a policy draws; the lottery needs none,
    since all that it may draw is looked at. Candidates are drawn with the same numbers."""

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

    def offer(anchor: int, proposals: Sequence[Proposal], rng: Randomness) -> Offered:
        (mixture,) = proposals
        if not isinstance(mixture, MixtureProposal):
            raise RequestError("only the drafter dblast has a prior to temper")
        return Offered(
            {
                str(z_t): Offer(rule, grown(anchor, evolve(mixture, prior_temperature=z_t), rng))
                for z_t in grid
            }
        )

    return offer


def curve(
    temperature: float, prompts: Mapping[str, Sequence[Seen]], grid: Sequence[float], seed: int
) -> dict[str, Any]:
    """What each candidate accepts at one target temperature, and the best one."""
    rounds = {name: seen for name, seen in prompts.items() if seen}
    if not rounds:
        raise RequestError("no round was long enough to judge a draft: ask for more tokens")
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


def _sums(rounds: Mapping[str, Sequence[Seen]], z_t: float) -> list[tuple[float, float]]:
    return [
        (sum(each.accepted[str(z_t)] for each in seen), float(len(seen)))
        for seen in rounds.values()
    ]


def _rate(sums: Sequence[tuple[float, float]], seed: int) -> dict[str, Any]:
    amounts, counts = zip(*sums, strict=True)
    return asdict(rate(amounts, counts, seed))
