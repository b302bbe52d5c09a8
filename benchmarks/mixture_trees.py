"""How long best-first trees over a mixture take: `python benchmarks/mixture_trees.py`.

Prints medians over many runs, from the drafter's logits to the finished tree: children looked for
among few tokens of each branch, and in the whole mixed distribution; and the tree of one branch
beside them."""

import argparse
import json
import statistics
import time

import torch
from attrs import frozen

from draftwood.core.distributions import stable_topk
from draftwood.core.options import Sampling
from draftwood.core.proposals import (
    Children,
    FactorizedProposal,
    Frontier,
    MixtureProposal,
    Proposal,
    Vocabulary,
)
from draftwood.core.randomness import Seeded
from draftwood.core.tree import TokenTree
from draftwood.core.values import Limits
from draftwood.plugins.trees.best_first import BestFirst
from draftwood.plugins.trees.options import BestFirstOptions

CASES = ((16, 4, 9, 2048), (64, 4, 9, 2048), (64, 4, 15, 32768), (256, 4, 15, 32768))
"""Nodes, branches, depth, vocabulary."""


@frozen(eq=False)
class Whole(MixtureProposal):
    """Finds children in the whole distribution, as the definition says."""

    def expand(self, at: Frontier, k: int) -> Children:
        tokens, probs = stable_topk(self.probs(at), k)
        return Children(tokens, probs.double().log())

    def shortlisted(self, width: int) -> Proposal:
        return self


def logits_of(branches: int, depth: int, vocabulary: int) -> torch.Tensor:
    """As sure as a drafter is, branches agreeing in part: surest at depth 1."""
    generator = torch.Generator().manual_seed(0)
    sharpness = torch.linspace(4.0, 2.5, depth)[:, None]
    shared = torch.randn(depth, vocabulary, generator=generator)
    own = torch.randn(branches, depth, vocabulary, generator=generator)
    return (0.8 * shared + 0.6 * own) * sharpness


def median_ms(kind: type[Proposal], logits: torch.Tensor, nodes: int, runs: int) -> float:
    """Milliseconds to grow one tree: a new proposal each time, as in a round."""
    policy = BestFirst(BestFirstOptions(max_nodes=nodes))
    prior, vocabulary = torch.zeros(len(logits)), Vocabulary(logits.shape[-1])
    times = []
    for run in range(runs + 2):
        fresh = logits + 0.0
        proposal: Proposal = (
            FactorizedProposal(fresh[0], Sampling(1.0), vocabulary)
            if kind is FactorizedProposal
            else kind(prior, fresh, Sampling(1.0), vocabulary)  # type: ignore[call-arg]
        )
        start = time.perf_counter()
        tree = policy.grow(0, proposal, Limits(nodes), _always, Seeded(0))
        if run >= 2:
            times.append(time.perf_counter() - start)
        assert tree.nodes == nodes
    return 1e3 * statistics.median(times)


def _always(tree: TokenTree) -> bool:
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    kinds = {"few": MixtureProposal, "whole": Whole, "one_branch": FactorizedProposal}
    rows = []
    for nodes, branches, depth, vocabulary in CASES:
        logits = logits_of(branches, depth, vocabulary)
        row = {"nodes": nodes, "logits": [branches, depth, vocabulary]}
        for name, kind in kinds.items():
            row[f"{name}_ms"] = median_ms(kind, logits, nodes, arguments.runs)
        rows.append(row)
    if arguments.json:
        print(json.dumps({"threads": arguments.threads, "cases": rows}))  # noqa: T201
        return
    print(f"{'nodes':>6}  {'logits':>14}  {'few':>10}  {'whole':>10}  one branch")  # noqa: T201
    for row in rows:
        size = "{} x {} x {}".format(*row["logits"])
        times = "  ".join(f"{row[f'{name}_ms']:>7.2f} ms" for name in kinds)
        print(f"{row['nodes']:>6}  {size:>14}  {times}")  # noqa: T201


if __name__ == "__main__":
    main()
