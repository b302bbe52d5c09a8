"""The cost of a mixture's branches in a drafter forward: `python benchmarks/branch_heads.py`.

Times the parts of a forward of the bundled drafter (or `--checkpoint`), and counts the operations
and weights of a drafter of realistic size: Qwen3-8B's width and vocabulary, five layers, blocks of
16. A forward consists of the block's layers, the head, and the branches' expander and prior.
Distributions and trees are measured by `benchmarks/mixture_trees.py`.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch.utils.flop_counter import FlopCounterMode

from draftwood.core.assets import resolve
from draftwood.plugins.drafters.dblast.config import DBlastConfig
from draftwood.plugins.drafters.dblast.model import DBlastModel

QWEN3_8B_DRAFTER = {
    "hidden_size": 4096,
    "num_hidden_layers": 5,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12288,
    "vocab_size": 151936,
    "num_target_layers": 36,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "max_position_embeddings": 40960,
    "block_size": 16,
    "layer_types": ["full_attention"] * 5,
    "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]},
    "dblast_config": {"branches": 4, "rank": 64},
}
Parts = dict[str, Callable[[], torch.Tensor]]


def parts(model: DBlastModel, context: int) -> Parts:
    """The parts of one forward after `context` tokens, as functions, on the model's device."""
    config, placement = model.config, {"device": model.device, "dtype": model.dtype}
    width, block = config.hidden_size, config.block_size
    head = torch.randn(config.draft_vocab_size, width, **placement)
    embeds, states = torch.randn(block, width, **placement), torch.randn(block, width, **placement)
    positions = torch.arange(context, context + block, device=model.device)
    layer = next(iter(model.stacked)).self_attn
    shape = (layer.kv_heads, context, layer.head_dim)
    cached = [
        (torch.randn(shape, **placement), torch.randn(shape, **placement)) for _ in model.stacked
    ]
    model.branch_logits(states[1:], head)  # the branch differences are computed once
    return {
        "layers": lambda: model.block(embeds, positions, cached),
        "head": lambda: model.logits(states[1:], head),
        "head and branches": lambda: model.branch_logits(states[1:], head),
        "prior": lambda: model.prior_logits(states[0]),
    }


def shares(cost: dict[str, float]) -> tuple[float, float]:
    """(cost of branches, cost of the rest)."""
    added = cost["head and branches"] - cost["head"] + cost["prior"]
    return added, cost["layers"] + cost["head"]


def microseconds(run: Callable[[], torch.Tensor], runs: int) -> float:
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times)


def flops(run: Callable[[], torch.Tensor]) -> float:
    with FlopCounterMode(display=False) as counter:
        run()
    return float(counter.get_total_flops())


def show(title: str, cost: dict[str, float], unit: str) -> None:
    added, rest = shares(cost)
    lines = [f"  {name:<18} {value:>12,.1f} {unit}" for name, value in cost.items()]
    summary = f"  branches add {added:,.1f} {unit} to {rest:,.1f}: {added / rest:.1%}\n"
    print("\n".join([title, *lines, summary]))  # noqa: T201


def count_large_drafter(context: int) -> None:
    with torch.device("meta"):
        model = DBlastModel(DBlastConfig.from_mapping(QWEN3_8B_DRAFTER)).to(torch.bfloat16)
        counted = {name: flops(run) / 1e9 for name, run in parts(model, context).items()}
    config = model.config
    show(f"operations, {config.branches} branches of rank {config.rank}, width 4096", counted, "G")
    k, r, d, v = config.branches, config.rank, config.hidden_size, config.vocab_size
    layers = sum(p.numel() for p in model.stack.parameters())
    rows = {"layers": layers, "head": v * d, "head and branches": v * d + r * (2 * d + (k - 1) * v)}
    read = {name: 2 * count / 1e6 for name, count in {**rows, "prior": k * (d + 1)}.items()}
    show("weights read in bfloat16 (E (U_z - U_0) kept: (K - 1) V r numbers)", read, "MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", default="builtin")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with torch.inference_mode():
        model = DBlastModel.from_folder(resolve(arguments.checkpoint, "dblast")).float()
        timed = parts(model, arguments.context)
        cost = {name: microseconds(run, arguments.runs) for name, run in timed.items()}
        size = f"{model.config.branches} branches of rank {model.config.rank}"
        show(f"{arguments.checkpoint}: {size}, {arguments.threads} threads", cost, "us")
        count_large_drafter(arguments.context)


if __name__ == "__main__":
    main()
