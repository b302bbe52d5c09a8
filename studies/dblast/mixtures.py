"""DBlast beside independent drafting, on equal terms: methods, gains, and where they come from.

Each comparison has one verification rule on both sides, and trees of scored nodes have as many
nodes in each round as the tree of greedy branches has. All numbers are drafts accepted per round
without the bonus token, exact given the trees (`studies.dblast.offers`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from attrs import asdict, evolve, frozen

from draftwood.bench.figures import Series, lines, standalone
from draftwood.bench.statistics import Ratio, rate, speedup
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
from studies.dblast.offers import EVERYTHING, Offer, Offered, Seen

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
"""An argmax chain under `ratio`, its q one-hot, accepts exactly what it does under `match`."""

COMPARISONS: Sequence[tuple[Method, Method]] = (
    ((LOTTERY, "match"), (ARGMAX, "match")),
    ((LOTTERY, "ratio"), (ARGMAX, "match")),
    ((LOTTERY, "ratio"), (DRAWN, "ratio")),
    ((MIXTURE, "ratio"), (DRAWN, "ratio")),
    ((MIXTURE, "traversal"), (DRAWN, "traversal")),
    ((BRANCHES, "match"), (PLAIN_TREE, "match")),
    ((MIXTURE_TREE, "match"), (PLAIN_TREE, "match")),
)
"""(ours, theirs); the second is a `ratio` comparison, by the remark above."""

COVERING = ("the greedy branches", "DFlash's likeliest", "DBlast's likeliest")
"""Whose first tokens are set beside the target's likeliest: as many of each as the greedy branches
have. A greedy branch proposes one token, so what these leave out no tree of them can win."""

TARGET = "the target's likeliest"

DRAWN_FIGURE = (3, 1, 6)
"""Which comparisons are drawn against entropy."""

BINS = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0)
"""Bits."""

FEW = 50
"""Rounds that a bin of entropy needs to be shown."""


def label(method: Method) -> str:
    return f"{method[0]} ({method[1]})"


@frozen
class Setting:
    """Temperature and filters of the target. top_k, top_p: None for none."""

    temperature: float
    top_k: int | None = None
    top_p: float | None = None

    def __str__(self) -> str:
        filters = []
        if self.top_k is not None:
            filters.append(f"top-k {self.top_k}")
        if self.top_p is not None:
            filters.append(f"top-p {self.top_p:g}")
        return f"T = {self.temperature:g}, {' + '.join(filters) or 'no filters'}"


@frozen
class Cell:
    """One setting: each prompt's rounds."""

    setting: Setting
    prompts: Mapping[str, Sequence[Seen]]


def offering(draws: int) -> Callable[[int, Sequence[Proposal], Randomness], Offered]:
    """What all methods would verify, from [DFlash's proposal, DBlast's].

    The lottery is exact over its draw, at the drafter's own Z_T; draws: chains that stand for each
    sampled method. Those, and trees, take the prior as it was trained, Z_T = 1.
    """

    def offer(anchor: int, proposals: Sequence[Proposal], rng: Randomness) -> Offered:
        plain, mixture = proposals
        if not isinstance(mixture, MixtureProposal):
            raise RequestError("the second drafter proposes no mixture: give a dblast checkpoint")
        trained = evolve(mixture, prior_temperature=1.0)

        def grown(policy: TreePolicy, proposal: Proposal, name: str = "") -> TokenTree:
            limits = Limits(EVERYTHING)
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
        offers = {label(method): Offer(method[1], trees[method[0]]) for method in METHODS}
        stars = _first_tokens(anchor, branches, plain, trained)
        offers |= {name: Offer("match", [(1.0, star)]) for name, star in stars.items()}
        return Offered(offers, _notes(mixture) | {"first": stars[COVERING[0]].nodes})

    return offer


def _first_tokens(
    anchor: int, branches: TokenTree, plain: Proposal, mixture: Proposal
) -> dict[str, TokenTree]:
    """Trees of one level, by the names in COVERING."""
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
    """The k first tokens that a proposal thinks likeliest, fewer where its filters leave fewer."""
    children = proposal.expand(proposal.root(), k)
    pairs = zip(children.tokens[0].tolist(), children.log_q[0].tolist(), strict=True)
    return [token for token, log_q in pairs if log_q > -math.inf]


def lottery(
    anchor: int, mixture: MixtureProposal, length: int | None = None
) -> list[tuple[float, TokenTree]]:
    """Every chain of `length` drafts (None: all there are) that the lottery may draw, with its
    chance."""
    length = mixture.max_depth if length is None else length
    paths, weights = mixture.greedy()[:, :length].tolist(), mixture.weights().tolist()
    first: dict[tuple[int, ...], int] = {}
    chance: dict[int, float] = {}
    for branch, (path, weight) in enumerate(zip(paths, weights, strict=True)):
        if weight > 0:
            drawn = first.setdefault(tuple(path), branch)
            chance[drawn] = chance.get(drawn, 0.0) + weight
    return [(share, lottery_chain(anchor, mixture, z, length)) for z, share in chance.items()]


def _notes(mixture: MixtureProposal) -> dict[str, Any]:
    trained = evolve(mixture, prior_temperature=1.0).weights().tolist()
    paths = mixture.greedy()
    return {
        "prior": trained,
        "lottery_prior": mixture.weights().tolist(),
        "distinct": [len(paths[:, : d + 1].unique(dim=0)) for d in range(paths.shape[1])],
    }


def report(cells: Sequence[Cell], seed: int) -> dict[str, Any]:
    """Everything that is printed, as JSON. seed: of the intervals.

    Raises RequestError for a cell without a round.
    """
    if short := [str(cell.setting) for cell in cells if not cell.prompts]:
        raise RequestError(
            f"{short[0]}: no round was long enough for a whole draft: ask for more tokens"
        )
    return {
        "counts_bonus": False,
        "cells": [_cell(cell, seed) for cell in cells],
        "by_entropy": _by_entropy(cells, seed),
    }


def _cell(cell: Cell, seed: int) -> dict[str, Any]:
    seen = [each for rounds in cell.prompts.values() for each in rounds]
    return {
        "setting": asdict(cell.setting),
        "title": str(cell.setting),
        "prompts": len(cell.prompts),
        "rounds": len(seen),
        "entropy": float(np.mean([each.entropy for each in seen])),
        "methods": [_method(cell, method, seen, seed) for method in METHODS],
        "gains": [_gain(cell.prompts, pair, seed) for pair in COMPARISONS],
        "branches": _usage(seen),
        "first_tokens": _covered(seen),
    }


def _method(cell: Cell, method: Method, seen: Sequence[Seen], seed: int) -> dict[str, Any]:
    sums = _sums(cell.prompts, label(method))
    amounts, rounds = zip(*sums, strict=True)
    nodes = float(np.mean([each.nodes[label(method)] for each in seen]))
    return {
        "method": method[0],
        "rule": method[1],
        "accepted": asdict(rate(amounts, rounds, seed)),
        "nodes": nodes,
    }


def _gain(
    prompts: Mapping[str, Sequence[Seen]], pair: tuple[Method, Method], seed: int
) -> dict[str, Any]:
    ours, theirs = (_sums(prompts, label(method)) for method in pair)
    found = _ratio(ours, theirs, seed)
    return {"ours": label(pair[0]), "theirs": label(pair[1]), "ratio": asdict(found)}


def _ratio(
    ours: Sequence[tuple[float, float]], theirs: Sequence[tuple[float, float]], seed: int
) -> Ratio:
    """Drafts for drafts over the same rounds, prompts drawn as pairs."""
    if not sum(amount for amount, _ in theirs) > 0:
        return Ratio(float(sum(amount for amount, _ in ours) > 0) or 1.0, None, None)
    return speedup(ours, theirs, seed)


def _sums(prompts: Mapping[str, Sequence[Seen]], name: str) -> list[tuple[float, float]]:
    """Per prompt: drafts accepted and rounds; prompts without a round are left out."""
    return [
        (sum(each.accepted[name] for each in rounds), float(len(rounds)))
        for rounds in prompts.values()
        if rounds
    ]


def _usage(seen: Sequence[Seen]) -> dict[str, Any]:
    """How branches are used. effective: exp of the entropy of the mean prior, and the mean of it
    over rounds. distinct: mean greedy branches that differ within the first d drafts."""
    prior = np.array([each.notes["prior"] for each in seen])
    return {
        "usage": prior.mean(0).tolist(),
        "lottery_usage": np.array([each.notes["lottery_prior"] for each in seen]).mean(0).tolist(),
        "effective": float(np.exp(_nats(prior.mean(0)))),
        "effective_in_a_round": float(np.exp(_nats(prior)).mean()),
        "distinct": np.array([each.notes["distinct"] for each in seen]).mean(0).tolist(),
    }


def _covered(seen: Sequence[Seen]) -> dict[str, Any]:
    """Mean number of different first tokens of the greedy branches, and how much of the target's
    distribution they have; beside them as many tokens that others think likeliest, the target
    last."""
    first = [each.notes["first"] for each in seen]
    most = [each.mass[min(n, len(each.mass)) - 1] for n, each in zip(first, seen, strict=True)]
    mass = {name: float(np.mean([each.accepted[name] for each in seen])) for name in COVERING}
    return {"tokens": float(np.mean(first)), "mass": {**mass, TARGET: float(np.mean(most))}}


def _nats(probs: np.ndarray) -> np.ndarray:
    found: np.ndarray = -(probs * np.log(np.where(probs > 0, probs, 1.0))).sum(-1)
    return found


def _by_entropy(cells: Sequence[Cell], seed: int) -> list[dict[str, Any]]:
    """Gains by the entropy of the round's first token, all settings together."""
    found = []
    for low, high in pairwise(BINS):
        prompts: dict[str, list[Seen]] = {}
        for cell in cells:
            for name, rounds in cell.prompts.items():
                here = [each for each in rounds if low <= each.entropy < high]
                prompts.setdefault(name, []).extend(here)
        some = [each for rounds in prompts.values() for each in rounds]
        if len(some) < FEW:
            continue
        found.append(
            {
                "low": low,
                "high": high,
                "rounds": len(some),
                "mean": float(np.mean([each.entropy for each in some])),
                "gains": [_gain(prompts, pair, seed) for pair in COMPARISONS],
            }
        )
    return found


def figure(found: Mapping[str, Any]) -> str | None:
    """The main gains against entropy, as an SVG file; None with fewer than two bins."""
    bins = found["by_entropy"]
    if len(bins) < 2:
        return None
    series = [
        Series(
            f"{COMPARISONS[index][0][0]} over {COMPARISONS[index][1][0]}",
            [(each["mean"], each["gains"][index]["ratio"]["value"]) for each in bins],
            colour,
        )
        for colour, index in enumerate(DRAWN_FIGURE)
    ]
    across = "entropy of the target's next token, bits"
    return standalone(lines(series, across, "accepted drafts, times"))


def markdown(found: Mapping[str, Any]) -> str:
    """Every table."""
    parts = [
        "## DBlast beside independent drafting\n",
        "Drafts accepted per round, the bonus token not counted, with 95% intervals over prompts; "
        "exact given the trees. Gains compare the same rounds under one rule. Trees have the nodes "
        "of the tree of greedy branches, round for round.\n",
    ]
    for cell in found["cells"]:
        head = f"{cell['title']}: {cell['prompts']} prompts, {cell['rounds']} rounds"
        parts.append(f"### {head}, entropy {cell['entropy']:.2f} bits\n")
        parts.append(_table(("method", "rule", "accepted", "(95%)", "nodes"), _rows(cell)) + "\n")
        gains = [(each["ours"], each["theirs"], *_percent(each["ratio"])) for each in cell["gains"]]
        parts.append(_table(("gain of", "over", "gain", "(95%)"), gains) + "\n")
        parts.append(f"{_said(cell['branches'])} {_said_of_first(cell['first_tokens'])}\n")
    if found["by_entropy"]:
        parts.append("### Gains by the entropy of the target's next token\n")
        pairs = [COMPARISONS[index] for index in DRAWN_FIGURE]
        columns = ("bits", "rounds", *(f"{ours[0]} over {theirs[0]}" for ours, theirs in pairs))
        rows = [
            (
                f"{each['low']:g} to {each['high']:g}",
                str(each["rounds"]),
                *(" ".join(_percent(each["gains"][index]["ratio"])) for index in DRAWN_FIGURE),
            )
            for each in found["by_entropy"]
        ]
        parts.append(_table(columns, rows) + "\n")
    return "\n".join(parts)


def _rows(cell: Mapping[str, Any]) -> list[tuple[str, ...]]:
    return [
        (each["method"], each["rule"], *_interval(each["accepted"]), f"{each['nodes']:.1f}")
        for each in cell["methods"]
    ]


def _said(branches: Mapping[str, Any]) -> str:
    usage = ", ".join(f"{share:.2f}" for share in branches["usage"])
    distinct = ", ".join(f"{count:.2f}" for count in branches["distinct"])
    return (
        f"Branches: usage {usage}; effective number {branches['effective']:.2f} over all rounds, "
        f"{branches['effective_in_a_round']:.2f} in a round; distinct greedy branches by depth: "
        f"{distinct}."
    )


def _said_of_first(first: Mapping[str, Any]) -> str:
    mass = ", ".join(f"{name} {share:.3f}" for name, share in first["mass"].items())
    return (
        f"First tokens: the greedy branches have {first['tokens']:.2f} different ones; as many "
        f"cover of the target's distribution: {mass}."
    )


def _interval(value: Mapping[str, Any]) -> tuple[str, str]:
    if value["low"] is None:
        return f"{value['value']:.3f}", "-"
    return f"{value['value']:.3f}", f"({value['low']:.3f} to {value['high']:.3f})"


def _percent(ratio: Mapping[str, Any]) -> tuple[str, str]:
    if ratio["low"] is None:
        return f"{ratio['value'] - 1:+.1%}", "-"
    return f"{ratio['value'] - 1:+.1%}", f"({ratio['low'] - 1:+.1%} to {ratio['high'] - 1:+.1%})"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = ("---",) * len(columns)
    return "\n".join(f"| {' | '.join(line)} |" for line in (columns, rule, *rows))
