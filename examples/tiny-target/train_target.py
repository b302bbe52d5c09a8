"""Train the tiny target: a deep, narrow Qwen3 on the standard library's source.

    python train_target.py --work ./work --minutes 45

Deep and narrow on purpose: a one- or two-layer drafter of the same width then costs a small part
of the target's forward, as it does for large models. Optimiser: Muon (Jordan et al. 2024) for the
hidden matrices, AdamW for the rest. Schedule: warm-up, constant, linear cool-down, as a function of
the fraction of the budget spent, so that a run can be sized in minutes. Interrupt it at any time:
the next call continues from the last checkpoint.
"""

import argparse
import json
import math
import os
import shutil
from copy import deepcopy
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from draftwood.training.muon import Muon
from draftwood.training.pace import Clock, Progress, rate, save_checkpoint, settle

WARM_UP, COOL_DOWN = 0.02, 0.4  # fractions of the budget


def plain_attention(
    module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: None, scaling: float, **_: object
) -> tuple[Tensor, None]:
    """Causal attention spelt out: for short windows in bfloat16 twice as fast as SDPA on a CPU."""
    groups, length = q.shape[1] // k.shape[1], q.shape[2]
    k, v = (x.repeat_interleave(groups, dim=1) for x in (k, v))
    scores = (q * scaling) @ k.mT
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    weights = scores.masked_fill(future, -math.inf).softmax(-1).to(v.dtype)
    return (weights @ v).transpose(1, 2).contiguous(), None


def build(args: argparse.Namespace, vocab: int, end: int) -> Qwen3ForCausalLM:
    """A randomly initialised target; output projections start at zero, so depth starts harmless."""
    config = Qwen3Config(
        vocab_size=vocab,
        hidden_size=args.hidden,
        num_hidden_layers=args.layers,
        num_attention_heads=args.hidden // args.head_dim,
        num_key_value_heads=max(1, args.hidden // args.head_dim // 2),
        head_dim=args.head_dim,
        intermediate_size=3 * args.hidden,
        max_position_embeddings=4096,
        rope_theta=10000.0,
        tie_word_embeddings=True,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        use_cache=False,
    )
    AttentionInterface.register("plain", plain_attention)
    config._attn_implementation = "plain"
    model = Qwen3ForCausalLM(config)
    for layer in model.model.layers:
        nn.init.zeros_(layer.self_attn.o_proj.weight)
        nn.init.zeros_(layer.mlp.down_proj.weight)
    return model


def windows(tokens: np.ndarray, step: int, context: int, args: argparse.Namespace) -> Tensor:
    """The batch of `step` (n, context + 1): a function of the seed, the step and its length."""
    rng = np.random.default_rng((args.seed, step))
    starts = rng.integers(0, len(tokens) - context - 1, args.batch * args.context // context)
    rows = np.stack([tokens[s : s + context + 1] for s in starts])
    return torch.from_numpy(rows.astype(np.int64))


def loss_of(model: nn.Module, rows: Tensor, autocast: bool) -> Tensor:
    """Mean next-token cross-entropy of rows (batch, context + 1), in nats."""
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        hidden = model.model(rows[:, :-1]).last_hidden_state
        logits = model.lm_head(hidden)
    return F.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())


@torch.no_grad()
def heldout_loss(model: nn.Module, tokens: np.ndarray, context: int, autocast: bool) -> float:
    """Loss over the held-out files' first windows, in nats a token."""
    count = min((len(tokens) - 1) // context, 64 * 256 // context)
    pick = np.linspace(0, (len(tokens) - 1) // context - 1, count).astype(int)
    rows = np.stack([tokens[i * context : (i + 1) * context + 1] for i in pick])
    batches = torch.from_numpy(rows.astype(np.int64)).split(16)
    return float(np.mean([loss_of(model, b, autocast).item() for b in batches]))


def export(model: Qwen3ForCausalLM, tokenizer_dir: Path, out: Path) -> None:
    """Write a Hugging Face folder with bfloat16 weights: a rounded copy of the model's."""
    copy = Qwen3ForCausalLM(deepcopy(model.config))
    copy.load_state_dict(model.state_dict())
    copy.to(torch.bfloat16).config.use_cache = True
    copy.generation_config.use_cache = True
    copy.save_pretrained(out)
    shutil.copytree(tokenizer_dir, out, dirs_exist_ok=True)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path("work"))
    parser.add_argument("--out", type=Path, help="export folder (default: WORK/export/target)")
    parser.add_argument("--minutes", type=float, default=45.0, help="budget; pauses do not count")
    parser.add_argument("--steps", type=int, help="budget in steps instead of minutes")
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--long-context", type=int, default=512, help="in the cool-down")
    parser.add_argument("--lr", type=float, default=0.02, help="Muon's")
    parser.add_argument("--adam-lr", type=float, default=4e-3)
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--nice", type=int, default=0)
    parser.add_argument("--autocast", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--pause-file", type=Path, default=Path("/tmp/draftwood-pause"))
    parser.add_argument("--export-minutes", type=float, default=10.0, help="intermediate exports")
    args = parser.parse_args()
    args.out = args.out or args.work / "export" / "target"
    return args


def main() -> None:
    """Train until the budget is spent, then export and report the rounded weights' loss."""
    args = arguments()
    settle(args.threads, args.nice)
    torch.manual_seed(args.seed)
    train, heldout = (np.load(args.work / f"{split}.npy") for split in ("train", "heldout"))
    tokenizer = AutoTokenizer.from_pretrained(args.work / "tokenizer")
    model = build(args, len(tokenizer), tokenizer.eos_token_id)
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    muon = Muon(matrices)
    adam = torch.optim.AdamW(others, lr=args.adam_lr, betas=(0.9, 0.95), weight_decay=0.0)
    step, clock = 0, Clock(args.pause_file)
    checkpoint = args.work / "target.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        adam.load_state_dict(state["adam"])
        muon.buffers = state["muon"]
        step, clock = state["step"], Clock(args.pause_file, state["spent"])
        print(f"continuing at step {step}, {clock.spent / 60:.1f} minutes spent", flush=True)
    if args.compile:
        for layer in model.model.layers:
            layer.compile(dynamic=False)  # two window lengths: two exact kernels, not one general
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{parameters / 1e6:.2f}M parameters, {len(train):,} training tokens", flush=True)

    progress, mean = Progress("target", clock), math.nan
    budget = args.steps or args.minutes * 60
    while (done := (step if args.steps else clock.spent) / budget) < 1:
        clock.wait_while_paused()
        factor = rate(done, WARM_UP, COOL_DOWN)
        for group in adam.param_groups:
            group["lr"] = args.adam_lr * factor
        context = args.context if done < 1 - COOL_DOWN else args.long_context
        loss = loss_of(model, windows(train, step, context, args), args.autocast)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        muon.step(args.lr * factor, args.weight_decay)
        adam.step()
        model.zero_grad()
        step += 1
        mean = loss.item() if math.isnan(mean) else mean + 0.05 * (loss.item() - mean)
        progress.show(done, f"step {step}, loss {mean:.3f}")
        if clock.due("evaluate", 240):
            value = heldout_loss(model, heldout, args.context, args.autocast)
            progress.say(f"{clock.spent / 60:.1f} min, step {step}: held-out {value:.4f}")
        if clock.due("checkpoint", 120):
            state = {"model": model.state_dict(), "adam": adam.state_dict(), "muon": muon.buffers}
            save_checkpoint(checkpoint, {**state, "step": step, "spent": clock.spent})
        if clock.due("export", 60 * args.export_minutes):
            export(model, args.work / "tokenizer", args.out)

    export(model, args.work / "tokenizer", args.out)
    rounded = Qwen3ForCausalLM.from_pretrained(args.out, dtype=torch.float32)
    report = {
        "steps": step,
        "minutes": round(clock.spent / 60, 1),
        "parameters": parameters,
        **{
            f"{name}_{context}": round(heldout_loss(weights, heldout, context, False), 4)
            for name, weights in (("heldout_loss", model), ("heldout_loss_exported", rounded))
            for context in (args.context, args.long_context)
        },
    }
    (args.work / "target-report.json").write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
