"""The share of a round outside the models' forwards: `python benchmarks/round_overhead.py`.

Decodes at two context lengths and prints, by stage, milliseconds per round and the share that is
neither the drafter's nor the target's forward. That share should stay below a tenth and not grow
with the context. Forwards are timed around the modules, so masks, copies and the engine count as
overhead.

Without a bundled model the target is a random one of the same kind (20 layers of width 128) and its
text is drafted from a script: the drafter's forward costs nothing and the shares are upper bounds.
"""

import argparse
import cProfile
import inspect
import itertools
import json
import pstats
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

import torch
from attrs import field, frozen

from draftwood.core.build import build_component, load_pipeline
from draftwood.core.generation import Pipeline
from draftwood.core.interfaces import Drafter, DraftSession, DraftWork, Target
from draftwood.core.options import Sampling
from draftwood.core.proposals import FactorizedProposal, Vocabulary
from draftwood.core.registry.plugin import Kind
from draftwood.core.values import RoundStats

VOCAB, DEPTH = 2048, 10
STAGES = ("draft", "grow", "verify", "judge", "commit", "other")


@frozen(eq=False)
class ScriptedSession(DraftSession):
    """The committed tokens."""

    sampling: Sampling
    ids: list[int] = field(factory=list)

    def commit(self, tokens: Any, features: Any) -> None:
        self.ids.extend(tokens)

    def fork(self) -> "ScriptedSession":
        return ScriptedSession(self.sampling, self.ids.copy())


class Scripted(Drafter):
    """Drafts a given text, with about one token in three wrong."""

    def __init__(self, text: list[int]) -> None:
        noise = torch.Generator().manual_seed(0)
        rng = random.Random(0)
        self.logits = torch.randn(len(text) + DEPTH, VOCAB, generator=noise)
        for position, token in enumerate(text):
            correct = rng.random() < 2 / 3
            self.logits[position, token if correct else rng.randrange(VOCAB)] = 9.0

    def open(self, target: Target, sampling: Sampling) -> ScriptedSession:
        return ScriptedSession(sampling)

    def propose(self, work: Any) -> list[FactorizedProposal]:
        return [self._proposal(item) for item in work]

    def _proposal(self, item: DraftWork) -> FactorizedProposal:
        assert isinstance(item.session, ScriptedSession)
        rows = self.logits[item.position + 1 : item.position + 1 + DEPTH]
        return FactorizedProposal(rows, item.session.sampling, Vocabulary(VOCAB))


def random_target() -> Any:
    from transformers import AutoModelForCausalLM, Qwen3Config

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=20,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        eos_token_id=None,
        bos_token_id=None,
    )
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()


def scripted_pipeline(target: Any, prompt: list[int], new: int, nodes: int) -> Pipeline:
    text = list(Pipeline(target).generate(prompt, max_new_tokens=new, eos_token_id=()).tokens)
    return Pipeline(
        target,
        Scripted(prompt + text),
        build_component(Kind.TREE, "best_first", max_nodes=nodes),
        build_component(Kind.CONTROLLER, "fixed", nodes=nodes),
    )


DRAFTER_METHODS = (
    "block",
    "logits",
    "branch_logits",
    "prior_logits",
    "context",
    "context_kv",
)
"""Methods of a block drafter's module that are timed."""


@contextmanager
def forwards_timed(pipeline: Pipeline) -> Iterator[list[float]]:
    """Seconds of each forward of the target's and the drafter's modules."""
    seconds: list[float] = []
    started: list[float] = []

    def timed(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            started.append(time.perf_counter())
            result = call(*args, **kwargs)
            took = time.perf_counter() - started.pop()
            if not started:  # forwards may be nested
                seconds.append(took)
            return result

        return run

    drafter = getattr(pipeline.engine.drafter, "model", None)
    modules = {"forward": getattr(pipeline.target, "model", None)}
    modules |= dict.fromkeys(DRAFTER_METHODS, drafter)
    modules["scores"] = getattr(drafter, "selector", None)
    changed = [(module, name) for name, module in modules.items() if hasattr(module, name)]
    for module, name in changed:
        setattr(module, name, timed(getattr(module, name)))
    try:
        yield seconds
    finally:
        for module, name in changed:
            delattr(module, name)


def measure(pipeline: Pipeline, prompt: list[int], new: int) -> dict[str, Any]:
    """Medians over the rounds of one request, in milliseconds."""
    rounds: list[RoundStats] = []
    marks: list[int] = []
    with forwards_timed(pipeline) as seconds:

        def record(stats: RoundStats) -> None:
            rounds.append(stats)
            marks.append(len(seconds))

        pipeline.observers.append(record)
        try:
            result = pipeline.generate(prompt, max_new_tokens=new, temperature=0.0, eos_token_id=())
        finally:
            pipeline.observers.remove(record)
    forwards = [sum(seconds[a:b]) for a, b in itertools.pairwise(marks)]
    totals = [stats.timings.total for stats in rounds[1:]]
    shares = [1 - forward / total for forward, total in zip(forwards, totals, strict=True)]
    return {
        "context": len(prompt),
        "rounds": len(rounds),
        "tokens_per_round": result.stats.accepted_length,
        "budget": statistics.mean(result.stats.budgets),
        "round_ms": 1e3 * statistics.median(totals),
        "forwards_ms": 1e3 * statistics.median(forwards),
        "outside_share": statistics.median(shares),
        **{
            f"{stage}_ms": 1e3 * statistics.median(getattr(s.timings, stage) for s in rounds[1:])
            for stage in STAGES
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipeline", default="tree-16", help="a builtin name or a file")
    parser.add_argument("--contexts", type=int, nargs="+", default=[200, 1800])
    parser.add_argument("--new", type=int, default=120)
    parser.add_argument("--nodes", type=int, default=16, help="of the random target's trees")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--random", action="store_true", help="use the random target")
    parser.add_argument("--profile", action="store_true", help="profile the last context")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    bundled = not arguments.random and _bundled_pair()
    pipeline = load_pipeline(arguments.pipeline) if bundled else None
    target = None if pipeline else random_target()
    rows = []
    for context in arguments.contexts:
        prompt = _prompt(pipeline, context)
        used = pipeline or scripted_pipeline(target, prompt, arguments.new, arguments.nodes)
        used.generate(prompt, max_new_tokens=8)  # warm
        rows.append(measure(used, prompt, arguments.new))
    _show(rows, arguments.json)
    if arguments.profile:
        with cProfile.Profile() as profile:
            used.generate(prompt, max_new_tokens=arguments.new, eos_token_id=())
        pstats.Stats(profile).sort_stats("tottime").print_stats(30)


def _bundled_pair() -> bool:
    folder = files("draftwood") / "assets" / "tiny-python"
    return all((folder / part / "config.json").is_file() for part in ("target", "drafter"))


def _prompt(pipeline: Pipeline | None, length: int) -> list[int]:
    """Real text if there is a tokenizer, because drafters predict no noise; else random tokens."""
    if pipeline is None or pipeline.tokenizer is None:
        rng = random.Random(length)
        return [rng.randrange(VOCAB) for _ in range(length)]
    ids: list[int] = pipeline.tokenizer(inspect.getsource(argparse))["input_ids"]
    return ids[:length]


def _show(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print(json.dumps({"threads": torch.get_num_threads(), "contexts": rows}))  # noqa: T201
        return
    stages = (f"{stage}_ms" for stage in STAGES)
    names = ("context", "rounds", "round_ms", "forwards_ms", "outside_share", *stages)
    print("  ".join(f"{name:>13}" for name in names))  # noqa: T201
    for row in rows:
        cells = [
            f"{row[name]:.3f}" if isinstance(row[name], float) else row[name] for name in names
        ]
        print("  ".join(f"{cell:>13}" for cell in cells))  # noqa: T201


if __name__ == "__main__":
    main()
