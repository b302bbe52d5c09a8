"""Numbers of the comparison: accepted drafts, gains, and how branches are used."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from attrs import asdict, frozen

from draftwood.bench.statistics import Ratio, rate, speedup
from draftwood.core.errors import RequestError
from studies.dblast.methods import COMPARISONS, COVERING, METHODS, TARGET, Method, label
from studies.dblast.replay import RoundAcceptance

ENTROPY_BINS = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0)
"""Edges in bits."""

MIN_ROUNDS = 50
"""Rounds that a bin of entropy needs to be shown."""


@frozen
class Setting:
    """Temperature and filters of the target; None for no filter."""

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
class SettingRounds:
    """One setting with the rounds of each prompt."""

    setting: Setting
    prompts: Mapping[str, Sequence[RoundAcceptance]]


def report(cells: Sequence[SettingRounds], seed: int) -> dict[str, Any]:
    """All numbers, as JSON values.

    Args:
        cells: One per setting.
        seed: Of the intervals.

    Raises:
        RequestError: A setting has no round.
    """
    if short := [str(cell.setting) for cell in cells if not cell.prompts]:
        raise RequestError(f"{short[0]}: no round had room for a whole draft; raise --tokens")
    return {
        "counts_bonus": False,
        "cells": [_cell(cell, seed) for cell in cells],
        "by_entropy": _by_entropy(cells, seed),
    }


def _cell(cell: SettingRounds, seed: int) -> dict[str, Any]:
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


def _method(
    cell: SettingRounds, method: Method, seen: Sequence[RoundAcceptance], seed: int
) -> dict[str, Any]:
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
    prompts: Mapping[str, Sequence[RoundAcceptance]], pair: tuple[Method, Method], seed: int
) -> dict[str, Any]:
    ours, theirs = (_sums(prompts, label(method)) for method in pair)
    ratio = _ratio(ours, theirs, seed)
    return {"ours": label(pair[0]), "theirs": label(pair[1]), "ratio": asdict(ratio)}


def _ratio(
    ours: Sequence[tuple[float, float]], theirs: Sequence[tuple[float, float]], seed: int
) -> Ratio:
    """Accepted drafts of ours over theirs in the same rounds, resampled by prompt."""
    if not sum(amount for amount, _ in theirs) > 0:
        return Ratio(float(sum(amount for amount, _ in ours) > 0) or 1.0, None, None)
    return speedup(ours, theirs, seed)


def _sums(prompts: Mapping[str, Sequence[RoundAcceptance]], name: str) -> list[tuple[float, float]]:
    """(accepted drafts, rounds) per prompt with a round."""
    return [
        (sum(each.accepted[name] for each in rounds), float(len(rounds)))
        for rounds in prompts.values()
        if rounds
    ]


def _usage(seen: Sequence[RoundAcceptance]) -> dict[str, Any]:
    """How branches are used. effective: exp of the entropy of the mean prior; effective_in_a_round:
    the mean of exp of each round's entropy. distinct counts greedy branches that differ within the
    first d drafts."""
    prior = np.array([each.notes["prior"] for each in seen])
    return {
        "usage": prior.mean(0).tolist(),
        "lottery_usage": np.array([each.notes["lottery_prior"] for each in seen]).mean(0).tolist(),
        "effective": float(np.exp(_nats(prior.mean(0)))),
        "effective_in_a_round": float(np.exp(_nats(prior)).mean()),
        "distinct": np.array([each.notes["distinct"] for each in seen]).mean(0).tolist(),
    }


def _covered(seen: Sequence[RoundAcceptance]) -> dict[str, Any]:
    """Mean number of distinct first tokens of the greedy branches, and their probability under the
    target; for comparison that of as many most likely tokens of each drafter and the target."""
    first = [each.notes["first"] for each in seen]
    most = [each.mass[min(n, len(each.mass)) - 1] for n, each in zip(first, seen, strict=True)]
    mass = {name: float(np.mean([each.accepted[name] for each in seen])) for name in COVERING}
    return {"tokens": float(np.mean(first)), "mass": {**mass, TARGET: float(np.mean(most))}}


def _nats(probs: np.ndarray) -> np.ndarray:
    """Entropy of (..., K)."""
    entropy: np.ndarray = -(probs * np.log(np.where(probs > 0, probs, 1.0))).sum(-1)
    return entropy


def _by_entropy(cells: Sequence[SettingRounds], seed: int) -> list[dict[str, Any]]:
    """Gains by the entropy of the target's next token, over all settings."""
    bins = []
    for low, high in pairwise(ENTROPY_BINS):
        prompts: dict[str, list[RoundAcceptance]] = {}
        for cell in cells:
            for name, rounds in cell.prompts.items():
                in_bin = [each for each in rounds if low <= each.entropy < high]
                prompts.setdefault(name, []).extend(in_bin)
        pooled = [each for rounds in prompts.values() for each in rounds]
        if len(pooled) < MIN_ROUNDS:
            continue
        bins.append(
            {
                "low": low,
                "high": high,
                "rounds": len(pooled),
                "mean": float(np.mean([each.entropy for each in pooled])),
                "gains": [_gain(prompts, pair, seed) for pair in COMPARISONS],
            }
        )
    return bins
