"""The methods that are compared, and the trees that each verifies in a round.

Each comparison has one verification rule on both sides, and best-first trees have as many nodes in
each round as the tree of greedy branches has.
"""

import math
from collections.abc import Sequence
from typing import Any

from attrs import evolve

from draftwood.core.errors import RequestError
from draftwood.core.interfaces import TreePolicy
from draftwood.core.proposals import MixtureProposal, Proposal
from draftwood.core.randomness import Randomness
from draftwood.core.tree import TokenTree
from draftwood.core.values import Limits
from draftwood.plugins.trees.best_first import BestFirst
from draftwood.plugins.trees.branches import Branches, lottery_chain
from draftwood.plugins.trees.chain import Chain
from draftwood.plugins.trees.options import BestFirstOptions, ChainOptions, SampledOptions
from draftwood.plugins.trees.sampled import Sampled
from studies.dblast.replay import UNLIMITED, GrowTrees, MethodTrees, RoundTrees

ARGMAX, DRAWN = "DFlash, argmax", "DFlash, drawn"
LOTTERY, MIXTURE = "DBlast, lottery", "DBlast, drawn from the mixture"
BRANCHES = "DBlast, tree of the greedy branches"
PLAIN_TREE, MIXTURE_TREE = "BASTION over DFlash", "BASTION over DBlast"

Method = tuple[str, str]
"""(name, rule)."""

METHODS: Sequence[Method] = (
    (ARGMAX, "match"),
    (LOTTERY, "match"),
    (BRANCHES, "match"),
    (PLAIN_TREE, "match"),
    (MIXTURE_TREE, "match"),
    (DRAWN, "ratio"),
    (LOTTERY, "ratio"),
    (MIXTURE, "ratio"),
    (DRAWN, "traversal"),
    (LOTTERY, "traversal"),
    (MIXTURE, "traversal"),
)
"""Under `ratio` an argmax chain has a one-hot q and accepts exactly what it does under `match`."""

COMPARISONS: Sequence[tuple[Method, Method]] = (
    ((LOTTERY, "match"), (ARGMAX, "match")),
    ((LOTTERY, "ratio"), (ARGMAX, "match")),
    ((LOTTERY, "ratio"), (DRAWN, "ratio")),
    ((MIXTURE, "ratio"), (DRAWN, "ratio")),
    ((MIXTURE, "traversal"), (DRAWN, "traversal")),
    ((BRANCHES, "match"), (PLAIN_TREE, "match")),
    ((MIXTURE_TREE, "match"), (PLAIN_TREE, "match")),
)
"""(ours, theirs). The second compares under `ratio`: see METHODS."""

COVERING = ("the greedy branches", "DFlash's likeliest", "DBlast's likeliest")
"""Choices of first tokens, each as many as the greedy branches have, compared with the target's
most likely ones: a greedy branch proposes one token, so its tree cannot accept any other."""

TARGET = "the target's likeliest"


def label(method: Method) -> str:
    return f"{method[0]} ({method[1]})"


def method_trees(draws: int) -> GrowTrees:
    """Grow all methods' trees from the proposals of [DFlash, DBlast].

    The lottery is exact over its draw, at the drafter's own Z_T; all other methods use the prior
    as trained, Z_T = 1.

    Args:
        draws: Chains for each sampled method.
    """

    def grow(anchor: int, proposals: Sequence[Proposal], rng: Randomness) -> RoundTrees:
        plain, mixture = proposals
        if not isinstance(mixture, MixtureProposal):
            raise RequestError("the second drafter proposes no mixture: use a dblast checkpoint")
        trained = evolve(mixture, prior_temperature=1.0)

        def grown(policy: TreePolicy, proposal: Proposal, name: str = "") -> TokenTree:
            limits = Limits(UNLIMITED)
            return policy.grow(anchor, proposal, limits, lambda tree: True, rng.stream(name))

        def chains(proposal: Proposal, name: str) -> list[tuple[float, TokenTree]]:
            policy = Sampled(SampledOptions())
            return [(1 / draws, grown(policy, proposal, f"{name}/{n}")) for n in range(draws)]

        branches = grown(Branches(), trained)
        scored = BestFirst(BestFirstOptions(max_nodes=branches.nodes))
        trees = {
            ARGMAX: [(1.0, grown(Chain(ChainOptions()), plain))],
            DRAWN: chains(plain, "plain"),
            LOTTERY: lottery(anchor, mixture),
            MIXTURE: chains(trained, "mixture"),
            BRANCHES: [(1.0, branches)],
            PLAIN_TREE: [(1.0, grown(scored, plain))],
            MIXTURE_TREE: [(1.0, grown(scored, trained))],
        }
        trees_by_method = {
            label(method): MethodTrees(method[1], trees[method[0]]) for method in METHODS
        }
        first_tokens = _first_tokens(anchor, branches, plain, trained)
        trees_by_method |= {
            name: MethodTrees("match", [(1.0, star)]) for name, star in first_tokens.items()
        }
        return RoundTrees(
            trees_by_method, _notes(mixture) | {"first": first_tokens[COVERING[0]].nodes}
        )

    return grow


def _first_tokens(
    anchor: int, branches: TokenTree, plain: Proposal, mixture: Proposal
) -> dict[str, TokenTree]:
    """Trees of one level, by their names in COVERING."""
    own = [branches.token_list[child] for child in branches.children[0]]
    chosen = (own, _likeliest(plain, len(own)), _likeliest(mixture, len(own)))
    return {
        name: TokenTree.from_lists(
            [anchor, *tokens],
            [-1] + [0] * len(tokens),
            [0] + [1] * len(tokens),
            [0.0] * (1 + len(tokens)),
        )
        for name, tokens in zip(COVERING, chosen, strict=True)
    }


def _likeliest(proposal: Proposal, k: int) -> list[int]:
    """The k most likely first tokens of a proposal, fewer where its filters leave fewer."""
    children = proposal.expand(proposal.root(), k)
    pairs = zip(children.tokens[0].tolist(), children.log_q[0].tolist(), strict=True)
    return [token for token, log_q in pairs if log_q > -math.inf]


def lottery(
    anchor: int, mixture: MixtureProposal, length: int | None = None
) -> list[tuple[float, TokenTree]]:
    """Every chain that the lottery may draw, with its probability.

    Args:
        anchor: The last committed token.
        mixture: The proposal.
        length: Drafts per chain; None for the proposal's depth.
    """
    length = mixture.max_depth if length is None else length
    paths, weights = mixture.greedy()[:, :length].tolist(), mixture.weights().tolist()
    first: dict[tuple[int, ...], int] = {}
    probability: dict[int, float] = {}
    for branch, (path, weight) in enumerate(zip(paths, weights, strict=True)):
        if weight > 0:
            drawn = first.setdefault(tuple(path), branch)
            probability[drawn] = probability.get(drawn, 0.0) + weight
    return [(share, lottery_chain(anchor, mixture, z, length)) for z, share in probability.items()]


def _notes(mixture: MixtureProposal) -> dict[str, Any]:
    """Branch weights, and how many greedy branches differ within the first d drafts."""
    trained = evolve(mixture, prior_temperature=1.0).weights().tolist()
    paths = mixture.greedy()
    return {
        "prior": trained,
        "lottery_prior": mixture.weights().tolist(),
        "distinct": [len(paths[:, : d + 1].unique(dim=0)) for d in range(paths.shape[1])],
    }
