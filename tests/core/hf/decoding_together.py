"""One of several processes that decode with a split target: run by torchrun, see the test.

Writes what it decoded, as JSON, to a file of its own in the folder that is its first argument.
"""

import itertools
import json
import random
import sys
from pathlib import Path

import torch

import draftwood
from draftwood.core import processes
from draftwood.core.generation import Pipeline
from draftwood.plugins.controllers.options import RooflineOptions
from draftwood.plugins.controllers.roofline import Roofline

PROMPT = "def main(argv=None):\n    "
TOKENS = 24
PIPELINE = {
    "target": {"model": "builtin"},
    "drafter": {"use": "dflash", "checkpoint": "builtin"},
    "tree": {"use": "best_first", "max_nodes": 12},
    "controller": {"use": "fixed", "nodes": 12},
    "verifier": {"use": "match"},
    "runtime": {"dtype": "float64", "device": "cpu", "threads": 1},
}


def main(folder: Path) -> None:
    together = [] if len(sys.argv) > 2 else ["runtime.parallel=tensor"]
    pipeline = draftwood.load_pipeline(PIPELINE, together)
    greedy = pipeline.generate(PROMPT, max_new_tokens=TOKENS)
    unseeded = pipeline.generate(PROMPT, max_new_tokens=TOKENS, temperature=1.0)
    # Budgets that follow times, told by a clock that runs differently in every process.
    steps = random.Random(processes.rank())
    ticks = itertools.accumulate(steps.choice((1e-5, 1e-4)) for _ in itertools.count())
    skewed = Pipeline(
        pipeline.target,
        pipeline.engine.drafter,
        pipeline.engine.tree,
        Roofline(RooflineOptions(max_nodes=12, refresh=True, probe_seconds=0.5)),
        tokenizer=pipeline.tokenizer,
        clock=lambda: next(ticks),
    )
    timed = skewed.generate(PROMPT, max_new_tokens=TOKENS)
    model = pipeline.target.model  # type: ignore[attr-defined]
    found = {
        "greedy": greedy.tokens,
        "unseeded": unseeded.tokens,
        "seed": unseeded.seed,
        "timed": timed.tokens,
        "budgets": timed.stats.budgets,
        "accepted": greedy.stats.accepted,
        "split": [name for name, p in model.named_parameters() if hasattr(p, "device_mesh")],
    }
    (folder / f"{processes.rank()}.json").write_text(json.dumps(found))


torch.set_num_threads(1)
main(Path(sys.argv[1]))
