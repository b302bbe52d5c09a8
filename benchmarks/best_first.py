"""How long a best-first tree takes to grow, distributions included: `python
benchmarks/best_first.py`.

Prints medians over many runs for both forms, from the drafter's logits to the finished tree:
256 nodes from 15 x 4096 logits must take under 2 ms, and 32 nodes from 10 x 2048 is a usual round.
"""

import argparse
import json
import statistics
import time

import torch

from draftwood.core.options import Sampling
from draftwood.core.proposals import FactorizedProposal, Vocabulary
from draftwood.core.randomness import Seeded
from draftwood.core.tree import TokenTree
from draftwood.core.values import Limits
from draftwood.plugins.trees.best_first import BestFirst
from draftwood.plugins.trees.options import BestFirstOptions

CASES = ((256, 15, 4096), (64, 10, 2048), (32, 10, 2048), (8, 10, 2048))


def median_ms(form: str, nodes: int, depth: int, vocabulary: int, runs: int) -> float:
    """Milliseconds to grow one tree: a new proposal each time, as in a round."""
    policy = BestFirst(BestFirstOptions(max_nodes=nodes, form=form))
    generator = torch.Generator().manual_seed(0)
    # As sure as a drafter is: about one token in two right at depth 1, less with each level.
    sharpness = torch.linspace(4.0, 2.5, depth)[:, None]
    logits = torch.randn(depth, vocabulary, generator=generator) * sharpness
    times = []
    for run in range(runs + 10):
        proposal = FactorizedProposal(logits + 0.0, Sampling(), Vocabulary(vocabulary))
        start = time.perf_counter()
        tree = policy.grow(0, proposal, Limits(nodes), _always, Seeded(0))
        if run >= 10:
            times.append(time.perf_counter() - start)
        assert tree.nodes == nodes
    return 1e3 * statistics.median(times)


def _always(tree: TokenTree) -> bool:
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows = [
        {
            "nodes": nodes,
            "logits": [depth, vocabulary],
            "search_ms": median_ms("search", nodes, depth, vocabulary, arguments.runs),
            "by_level_ms": median_ms("by_level", nodes, depth, vocabulary, arguments.runs),
        }
        for nodes, depth, vocabulary in CASES
    ]
    if arguments.json:
        print(json.dumps({"threads": arguments.threads, "cases": rows}))  # noqa: T201
        return
    print(f"{'nodes':>6}  {'logits':>10}  {'search':>9}  {'by_level':>9}")  # noqa: T201
    for row in rows:
        size = "{} x {}".format(*row["logits"])
        print(  # noqa: T201
            f"{row['nodes']:>6}  {size:>10}  {row['search_ms']:>6.2f} ms  "
            f"{row['by_level_ms']:>6.2f} ms"
        )


if __name__ == "__main__":
    main()
