"""The stages of a training file, in order, each skipped where its result is already there."""

import json
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import nn

from draftwood.core.errors import DraftwoodError, PairingError
from draftwood.core.hf.loading import load_target, load_tokenizer
from draftwood.core.hf.taps import decoder_of
from draftwood.core.hf.versions import text_config
from draftwood.plugins.drafters.dflash.config import DFlashConfig
from draftwood.plugins.drafters.dflash.model import DFlashModel
from draftwood.training.config import TrainingConfig
from draftwood.training.export import export
from draftwood.training.features import Features, extract
from draftwood.training.objectives import find
from draftwood.training.pace import Clock, settle
from draftwood.training.sampling import Prompts, Samples, sample
from draftwood.training.trainer import Data, Trainer


def run(config: TrainingConfig, resume: bool = True) -> Path:
    """Every stage; returns the export's folder. See `draftwood.training.train`."""
    settle(config.pace.threads, config.pace.nice)
    find(config.train.objective)
    torch.manual_seed(config.seed)
    target = load_target(config.target, device=config.device, dtype="float32")
    tokenizer = load_tokenizer(config.target)
    drafter = drafter_config(config, target.model, tokenizer)
    config.work.mkdir(parents=True, exist_ok=True)
    writer = load_target(config.target, device=config.device, dtype=config.sample.dtype)
    parts = {split: _samples(config, writer, tokenizer, split) for split in ("train", "heldout")}
    del writer
    features = {split: _features(config, target.model, parts[split], split) for split in parts}
    data = Data(
        parts["train"],
        features["train"],
        parts["heldout"],
        features["heldout"],
        target.embedding_weight().detach().float(),
        target.head_weight().detach().float(),
    )
    model = initialise(DFlashModel(drafter), target.model).to(target.device)
    trainer = Trainer(
        model,
        data,
        config.train,
        config.pace,
        seed=config.seed,
        checkpoint=config.work / "drafter.pt",
        on_export=lambda trained: export(trained, config.export),
    )
    if resume:
        trainer.resume()
    found = trainer.run()
    export(model, config.export)
    report = {
        "steps": trainer.step,
        "minutes": round(trainer.clock.spent / 60, 1),
        "parameters": sum(p.numel() for p in model.parameters()),
        "acceptance": [attrs.asdict(entry) for entry in found],
    }
    (config.work / "drafter-report.json").write_text(json.dumps(report, indent=2) + "\n")
    return config.export


def drafter_config(config: TrainingConfig, model: Any, tokenizer: Any) -> DFlashConfig:
    """The drafter's config for this target. Raises PairingError for taps or a mask token that the
    target does not have."""
    text, shape = text_config(model), config.drafter
    depth = text.num_hidden_layers
    if bad := [layer for layer in shape.taps if not 0 <= layer < depth]:
        raise PairingError(
            f"drafter.taps: no layer {bad[0]}; the target has layers 0 to {depth - 1}"
        )
    mask = shape.mask_token
    if mask is None:
        mask = getattr(tokenizer, "mask_token", None)
    if isinstance(mask, str):
        mask = tokenizer.get_vocab().get(mask)
    if mask is None or not 0 <= mask < text.vocab_size:
        raise PairingError(
            f"drafter.mask_token: {shape.mask_token!r} is no token of the target; name one that "
            f"never occurs in text, by its text or as an id below {text.vocab_size}"
        )
    return DFlashConfig(
        hidden_size=text.hidden_size,
        num_layers=shape.layers,
        num_heads=shape.heads,
        num_kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.intermediate,
        vocab_size=text.vocab_size,
        draft_vocab_size=text.vocab_size,
        block_size=shape.block_size,
        mask_token_id=mask,
        target_layer_ids=shape.taps,
        num_target_layers=depth,
        target_hidden_size=text.hidden_size,
        causal=(False,) * shape.layers,
        windows=(None,) * shape.layers,
        rope_theta=float(text.rope_parameters["rope_theta"]),
        max_position_embeddings=text.max_position_embeddings,
    )


def initialise(model: DFlashModel, target: Any = None) -> DFlashModel:
    """Sub-layers start silent (zero output projections), so that depth starts harmless, and the
    final norm starts as the target's, whose head reads it."""
    for layer in model.stacked:
        nn.init.zeros_(layer.self_attn.o_proj.weight)
        nn.init.zeros_(layer.mlp.down_proj.weight)
    norm = getattr(decoder_of(target), "norm", None) if target is not None else None
    if norm is not None and getattr(norm, "weight", None) is not None:
        model.norm.weight.data.copy_(norm.weight.data)
    return model


def _samples(config: TrainingConfig, writer: Any, tokenizer: Any, split: str) -> Samples:
    options, heldout = config.sample, split == "heldout"
    _same_settings(
        config.work / f"samples-{split}.settings.json",
        {"target": str(config.target), "seed": config.seed, **attrs.asdict(options)},
    )
    return sample(
        writer.model,
        Prompts(options.heldout if heldout else options.prompts, tokenizer),
        options,
        options.heldout_sequences if heldout else options.sequences,
        config.work / f"samples-{split}",
        seed=config.seed + heldout,
        eos=writer.eos_token_ids,
        clock=Clock(config.pace.pause_file),
        title=f"sample {split}",
    )


def _features(config: TrainingConfig, model: Any, samples: Samples, split: str) -> Features:
    taps = config.drafter.taps
    _same_settings(
        config.work / f"features-{split}.settings.json",
        {"target": str(config.target), "taps": taps, "dtype": config.feature_dtype},
    )
    return extract(
        model,
        samples,
        taps,
        config.work / f"features-{split}.bin",
        dtype=getattr(torch, config.feature_dtype),
        autocast=config.train.autocast,
        clock=Clock(config.pace.pause_file),
        title=f"features {split}",
    )


def _same_settings(path: Path, settings: dict[str, Any]) -> None:
    """Refuse results of an earlier run that was asked for something else."""
    now = json.loads(json.dumps(settings, default=str))
    if not path.exists():
        path.write_text(json.dumps(now, indent=2) + "\n")
        return
    before = json.loads(path.read_text())
    changed = sorted(key for key in now if before.get(key) != now[key])
    if changed:
        raise DraftwoodError(
            f"{path.name.partition('.')[0]} in {path.parent} were made with other settings "
            f"({', '.join(changed)}): delete them, or set another work folder"
        )
