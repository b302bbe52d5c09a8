"""The stages of a training file, in order, each skipped where its result is already there."""

import json
from pathlib import Path
from typing import Any

import attrs
import torch

from draftwood.core.assets import resolve
from draftwood.core.errors import DraftwoodError
from draftwood.core.hf.loading import load_target, load_tokenizer
from draftwood.core.registry.loader import installed
from draftwood.core.registry.registry import TRAINABLE, Registry
from draftwood.training.config import TrainingConfig
from draftwood.training.export import replace_export
from draftwood.training.features import Features, extract
from draftwood.training.identity import (
    check_export,
    check_identity,
    record_configuration,
    record_export,
)
from draftwood.training.likelihood import final_states, token_likelihoods
from draftwood.training.pace import Clock, Progress, settle
from draftwood.training.parallel import check_batch, first_goes_first, joined, rank
from draftwood.training.sampling import Prompts, Samples, sample
from draftwood.training.trainable import Data, Trainable
from draftwood.training.trainer import Trainer


def run(
    config: TrainingConfig, resume: bool = True, registry: Registry | None = None
) -> dict[str, Any]:
    """Run every stage.

    Args:
        config: The training file.
        resume: Continue from the last checkpoint; False starts the drafter anew.
        registry: Where the algorithm comes from; the installed plugins if None.

    Returns:
        The report: steps, minutes, parameters, acceptance by temperature.
    """
    if rank() == 0:
        check_export(config)
        check_identity(config, resume)
    settle(config.pace.threads, config.pace.nice)
    with joined(config.device) as device:
        check_batch(config.train.batch)
        return _stages(attrs.evolve(config, device=device), resume, registry or installed())


def _stages(config: TrainingConfig, resume: bool, registry: Registry) -> dict[str, Any]:
    torch.manual_seed(config.training_seed)
    config = attrs.evolve(config, target=resolve(config.target, "target"))
    target = load_target(config.target, device=config.device, dtype="float32")
    tokenizer = load_tokenizer(config.target)
    algorithm = registry.get(TRAINABLE, config.algorithm)
    trainable: Trainable = algorithm.build(config, target, tokenizer)
    try:
        with first_goes_first():
            data = _data(config, target, tokenizer, trainable)
    except KeyboardInterrupt:
        if rank() == 0:
            Progress("prepare", Clock()).say(
                f"interrupted; finished parts of samples and features are kept in {config.work}. "
                "The same command continues"
            )
        raise
    trainable.prepare(data)
    trainer = Trainer(
        trainable,
        data,
        config.train,
        config.pace,
        seed=config.training_seed,
        checkpoint=config.work / "drafter.pt",
        export=lambda: _export(config, trainable),
    )
    if resume:
        trainer.resume()
    found = trainer.run()
    if rank() > 0:
        return {}
    _export(config, trainable)
    report = {
        "steps": trainer.step,
        "minutes": round(trainer.clock.spent / 60, 1),
        "parameters": sum(p.numel() for p in trainable.model.parameters()),
        "acceptance": [attrs.asdict(entry) for entry in found],
    }
    (config.work / "drafter-report.json").write_text(json.dumps(report, indent=2) + "\n")
    return report


def _export(config: TrainingConfig, trainable: Trainable) -> None:
    def before_replacing(written: Path) -> None:
        check_export(config)
        record_export(config, written)

    replace_export(trainable.export, config.export, before_replacing)


def _data(config: TrainingConfig, target: Any, tokenizer: Any, trainable: Trainable) -> Data:
    """Samples and features of both splits, and what else the trainable reads."""
    config.work.mkdir(parents=True, exist_ok=True)
    record_configuration(config)
    writer = load_target(config.target, device=config.device, dtype=config.sample.dtype)
    train, heldout = (_samples(config, writer, tokenizer, name) for name in ("train", "heldout"))
    del writer
    _check_labels(config, train, config.sample.prompts)
    _check_labels(config, heldout, config.sample.heldout)
    model, layers, clock = target.model, trainable.layers, Clock(config.pace.pause_file)
    data = Data(
        train,
        _features(config, model, train, layers, "train"),
        heldout,
        _features(config, model, heldout, layers, "heldout"),
    )
    if trainable.wants_likelihoods:
        path = config.work / "likelihoods-train.bin"
        _same_settings(path.with_suffix(".settings.json"), _sample_settings(config))
        data = attrs.evolve(data, likelihoods=token_likelihoods(model, train, path, clock))
    if trainable.wants_states:
        head, path = target.head_weight().detach().float(), config.work / "states-heldout.bin"
        _same_settings(path.with_suffix(".settings.json"), _sample_settings(config))
        states = final_states(model, head, heldout, path, clock)
        data = attrs.evolve(data, heldout_states=states)
    if trainable.wants_prompts:
        data = attrs.evolve(data, prompts=Prompts(config.sample.prompts, tokenizer))
    return data


def _check_labels(config: TrainingConfig, samples: Samples, prompts: Path) -> None:
    """Raise DraftwoodError if the target's answers have no token that a drafter could predict.

    The first generated token is an anchor, whose successor is the first label.
    """
    if bool((samples.ends - samples.starts > 1).any()):
        return
    length = config.sample.length
    if bool((samples.ends < length).any()):
        reason = "every one ends with its first token. Use other prompts or temperatures"
    else:
        reason = (
            f"the prompts leave one token of sample.length {length} to each. Set a larger "
            "sample.length, or smaller sample.prompt_tokens"
        )
    raise DraftwoodError(
        f"the target's answers to {prompts} hold no token to learn from: {reason}, and another "
        "work folder"
    )


def _sample_settings(config: TrainingConfig) -> dict[str, Any]:
    """The settings that samples, and what is computed from them, depend on."""
    return {"target": str(config.target), "seed": config.seed, **attrs.asdict(config.sample)}


def _samples(config: TrainingConfig, writer: Any, tokenizer: Any, split: str) -> Samples:
    options, heldout = config.sample, split == "heldout"
    _same_settings(config.work / f"samples-{split}.settings.json", _sample_settings(config))
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


def _features(
    config: TrainingConfig, model: Any, samples: Samples, layers: tuple[int, ...], split: str
) -> Features:
    _same_settings(
        config.work / f"features-{split}.settings.json",
        {"target": str(config.target), "taps": layers, "dtype": config.feature_dtype},
    )
    return extract(
        model,
        samples,
        layers,
        config.work / f"features-{split}.bin",
        dtype=getattr(torch, config.feature_dtype),
        autocast=config.train.autocast,
        clock=Clock(config.pace.pause_file),
        title=f"features {split}",
    )


def _same_settings(path: Path, settings: dict[str, Any]) -> None:
    """Refuse results of an earlier run with other settings."""
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
