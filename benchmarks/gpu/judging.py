"""Judge and commit of one round by kernels and, with the same decisions, by torch on the device."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import attrs
import torch
from attrs import frozen
from clocks import Clock, Timed, place
from draft_trees import DEEPEST, rounded, straight, tree_of
from torch import Tensor

from draftwood.core.draws import Draws
from draftwood.core.interfaces import Verifier
from draftwood.core.kernels.triton.compaction import compact
from draftwood.core.node_distributions import TargetDistributions
from draftwood.core.options import Sampling
from draftwood.core.randomness import Seeded
from draftwood.core.tree import TokenTree
from draftwood.core.values import Verdict
from draftwood.plugins.verifiers.options import TritonOptions
from draftwood.plugins.verifiers.triton.verifier import Triton

SAMPLINGS = {
    "greedy": Sampling(temperature=0.0),
    "temperature 1": Sampling(temperature=1.0),
    "top-k 50, top-p 0.9": Sampling(temperature=0.7, top_k=50, top_p=0.9),
}


@frozen
class Size:
    """vocab: of the logits. nodes: of the tree, accepted: of which the walk takes. The rest is the
    K/V that a commit works on."""

    vocab: int = 151_936
    nodes: int = 64
    accepted: int = 6
    layers: int = 36
    kv_heads: int = 8
    dim: int = 128
    context: int = 8192


DRY = Size(vocab=64, nodes=6, accepted=2, layers=2, kv_heads=2, dim=16, context=40)


def measure(add: Callable[[dict[str, Any]], None], end: float, dry: bool) -> None:
    """A row per rule and sampling, and one for the commit: {case, times by contestant, wrong}.

    Raises RuntimeError if kernels and torch came to different results.
    """
    clock, size = Clock(place(dry), end), DRY if dry else Size()
    dtype = torch.float32 if dry else torch.bfloat16
    wrong = []
    for row in (*_commits(size, clock, dtype), *_judges(size, clock, dtype, dry)):
        add(row)
        if row["wrong"]:
            wrong.append(f"{row['case']}: {row['wrong']}")
    if wrong:
        raise RuntimeError("; ".join(wrong))


def _judges(size: Size, clock: Clock, dtype: torch.dtype, dry: bool) -> Iterator[dict[str, Any]]:
    for rule in ("match", "ratio", "multi_round"):
        for name, sampling in SAMPLINGS.items():
            if rule != "match" and (sampling.greedy or dry):  # the interpreter takes minutes
                continue
            if clock.left < 0:
                return
            round_ = Round(size, clock.device, dtype, rule)
            kernels = Triton(TritonOptions(rule=rule))
            contestants = {
                "kernels": partial(round_.judge, kernels, sampling),
                "torch": partial(round_.judge, kernels.reference, sampling),
            }
            times = clock.host_times(contestants, 30 if clock.on_gpu else 1)
            yield _row(f"judge: {rule}, {name}", times, partial(_differ, contestants))


def _differ(contestants: dict[str, Callable[[], Verdict]]) -> str | None:
    """Both verdicts, unless they are equal or rounding decided."""
    found, expected = contestants["kernels"](), contestants["torch"]()
    return (
        None if found == expected or found.near_ties else f"{found} by kernels, {expected} by torch"
    )


def _row(case: str, times: dict[str, Timed], differ: Callable[[], str | None]) -> dict[str, Any]:
    own, other = times["kernels"], times["torch"]
    return {
        "case": case,
        "times": {name: timed.as_dict() for name, timed in times.items()},
        "wrong": own.error or (None if other.error else differ()),
        "speedup": other.seconds / own.seconds if own.seconds and other.seconds else None,
    }


class Round:
    """Scores and a tree whose first nodes the target agrees with.

    `match` walks the tree on the device, where it was grown. `ratio` and `multi_round` walk drawn
    ones, a chain and a tree, with the distribution that each node was drawn from.
    """

    def __init__(self, size: Size, device: torch.device, dtype: torch.dtype, rule: str) -> None:
        torch.manual_seed(0)
        tree = (_chain if rule == "ratio" else tree_of)(size.nodes, size.vocab)
        accepted = min(size.accepted, straight(tree))
        scores = torch.randn(len(tree), size.vocab)
        for node in range(accepted):
            scores[node, tree.token_list[node + 1]] = 30.0
        self.scores = scores.to(device, dtype)
        if rule == "match":
            columns = (tree.tokens, tree.parents, tree.depths, tree.log_rho)
            self.tree = TokenTree(*(column.to(device) for column in columns))
        else:
            draws = Draws.CHAIN if rule == "ratio" else Draws.IID
            q = torch.softmax(torch.randn(tree.nodes, size.vocab), -1).to(device)
            self.tree = attrs.evolve(tree, draws=draws, q=q)

    def judge(self, verifier: Verifier, sampling: Sampling) -> Verdict:
        """Judge as a round does, with no cached value of an earlier call."""
        tree = attrs.evolve(self.tree)
        distributions = TargetDistributions(self.scores, tree, range(1), sampling, (), 0)
        with torch.inference_mode():
            return verifier.judge(distributions, tree, Seeded(0).stream("verify"))


def _chain(nodes: int, vocab: int) -> TokenTree:
    """As deep as a block drafter's block, at most."""
    tokens = tree_of(min(nodes, DEEPEST), vocab).token_list
    size = len(tokens)
    scores = [-0.5 * depth for depth in range(size)]
    return TokenTree.from_lists(tokens, list(range(-1, size - 1)), list(range(size)), scores)


def _commits(size: Size, clock: Clock, dtype: torch.dtype) -> Iterator[dict[str, Any]]:
    """Keys and values of all layers in one buffer, as the cache holds them."""
    capacity = rounded(size.context + size.nodes + 1)
    shape = (2 * size.layers, 1, size.kv_heads, capacity, size.dim)
    stack = torch.randn(shape, dtype=dtype, device=clock.device)
    path = [0, *range(2, 2 * size.accepted, 2)]
    contestants = {
        "kernels": partial(compact, [stack], size.context, path),
        "torch": partial(moved, [stack], size.context, path),
    }
    times = clock.host_times(contestants, 30 if clock.on_gpu else 1)

    def differ() -> str | None:
        small = stack[:2].clone()
        other = small.clone()
        compact([small], size.context, path)
        moved([other], size.context, path)
        return None if torch.equal(small, other) else "rows differ from those that torch moved"

    yield _row(f"commit: {len(path)} rows of {size.layers} layers", times, differ)


def moved(stacks: Sequence[Tensor], length: int, path: Sequence[int]) -> None:
    """The commit without kernels: one gather and one copy per stack."""
    for stack in stacks:
        rows = stack.narrow(3, length, path[-1] + 1)
        kept = rows.index_select(3, torch.tensor(path, device=stack.device))
        rows.narrow(3, 0, len(path)).copy_(kept)
