"""Recorded texts whose accepted lengths are scripted, and times that are linear in tokens."""

import itertools
import math
import random

from draftwood.core.tree import TokenTree
from draftwood.plugins.controllers.roofline.corrections import KNOTS
from draftwood.plugins.controllers.roofline.cost_model import CostModel
from draftwood.plugins.controllers.roofline.forward_table import ForwardTable
from draftwood.plugins.controllers.roofline.measuring import Probe
from draftwood.plugins.controllers.roofline.roof import Roof
from studies.budget import ablation
from studies.budget.recording import RecordedRound, RecordedText
from studies.budget.times import Times


def priced(per_token: float = 0.002, start: float = 0.010, **stages: float) -> Times:
    """A forward takes `start` and `per_token` for each token, on any context."""
    probes = [Probe(s, c, start + per_token * s) for c in (64, 2048) for s in (1, *KNOTS[1:], 512)]
    rest = {"draft": 0.002, "grow": ((0, 0.0),), "other": 0.001, "plain": 0.0005, **stages}
    return Times(ForwardTable.of(probes), **rest)  # type: ignore[arg-type]


def chain(length: int, share: float) -> TokenTree:
    """A path of equal tokens to each of which the drafter gives probability `share`."""
    steps = [n * math.log(share) for n in range(length + 1)]
    return TokenTree.from_lists(
        [1] * (length + 1), list(range(-1, length)), [*range(length + 1)], steps
    )


def text_of(accepted: list[int], share: float = 0.8, length: int = 16) -> RecordedText:
    """A text whose round at token i accepts `accepted[i]` nodes of a chain."""
    count = len(accepted)
    rounds = []
    for start, nodes in enumerate(accepted):
        remaining = count - start
        tree = chain(length, share) if remaining > 1 else TokenTree.root(1)
        path = tuple(range(min(nodes, length, remaining - 1) + 1))
        rounds.append(RecordedRound(100 + start, remaining, tree, path, tree, path, {}))
    return RecordedText("scripted", tuple(rounds))


def accepted_lengths(count: int, share: float, seed: int = 0) -> list[int]:
    """Accepted drafts of rounds in which each draft is accepted with probability `share`."""
    rng = random.Random(seed)
    return [next(n for n in itertools.count() if rng.random() > share) for _ in range(count)]


def exact_models(times: Times, per_token: float = 0.002) -> dict[str, CostModel]:
    """Cost models that predict the forwards of `priced(per_token)` exactly."""
    linear = (0.010, per_token, 0.0, 0.0, 0.0)
    return ablation.cost_models(Roof(linear, linear), (0.0,) * len(KNOTS), times)
