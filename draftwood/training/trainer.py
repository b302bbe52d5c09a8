"""Stage 3: the drafter's training loop. Resumes exactly: a step depends on the seed and its number
alone, and a checkpoint holds everything else."""

import math
from collections.abc import Callable
from pathlib import Path

import torch
from attrs import frozen
from torch import Tensor, nn

from draftwood.plugins.drafters.dflash.model import DFlashModel
from draftwood.training.config import OptimiserOptions, PaceOptions
from draftwood.training.evaluation import Acceptance, accepted
from draftwood.training.features import Features
from draftwood.training.muon import Muon
from draftwood.training.objectives import Blocks, find, gamma_for
from draftwood.training.pace import Clock, Progress, rate, save_checkpoint
from draftwood.training.packing import draw
from draftwood.training.sampling import Samples


@frozen(eq=False)
class Data:
    """What training reads. embedding, head: the target's (V, d), frozen, in float32."""

    samples: Samples
    features: Features
    heldout: Samples
    heldout_features: Features
    embedding: Tensor
    head: Tensor


class Trainer:
    """One run. checkpoint: its file. on_export: called with the model now and then."""

    def __init__(
        self,
        model: DFlashModel,
        data: Data,
        options: OptimiserOptions,
        pace: PaceOptions,
        *,
        seed: int,
        checkpoint: Path,
        on_export: Callable[[DFlashModel], None],
    ) -> None:
        self.model, self.data, self.options, self.pace = model, data, options, pace
        self.seed, self.checkpoint, self.on_export = seed, checkpoint, on_export
        self.objective = find(options.objective)
        self.gamma = options.gamma or gamma_for(model.config.block_size)
        hidden = [p for p in model.parameters() if p.ndim == 2]
        self.muon = Muon(hidden)
        rest = [p for p in model.parameters() if p.ndim != 2]
        self.adam = torch.optim.AdamW(rest, options.adam_lr, (0.9, 0.95), weight_decay=0.0)
        self.loss = torch.compile(self._loss, dynamic=False) if options.compile else self._loss
        self.step, self.clock = 0, Clock(pace.pause_file)

    def resume(self) -> bool:
        """Continue from the checkpoint, if there is one."""
        if not self.checkpoint.exists():
            return False
        state = torch.load(self.checkpoint, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.adam.load_state_dict(state["adam"])
        self.muon.buffers = [b.to(self.model.device) for b in state["muon"]]
        self.step = state["step"]
        self.clock = Clock(self.pace.pause_file, state["spent"])
        return True

    def save(self) -> None:
        save_checkpoint(
            self.checkpoint,
            {
                "model": self.model.state_dict(),
                "adam": self.adam.state_dict(),
                "muon": self.muon.buffers,
                "step": self.step,
                "spent": self.clock.spent,
            },
        )

    @property
    def fraction(self) -> float:
        """Of the budget spent."""
        if self.options.steps is not None:
            return self.step / self.options.steps
        return self.clock.spent / (60 * self.options.minutes)

    def run(self) -> list[Acceptance]:
        """Train until the budget is spent; returns the last evaluation."""
        progress, mean = Progress("train", self.clock), math.nan
        while (fraction := self.fraction) < 1:
            self.clock.wait_while_paused()
            loss = self.one_step(fraction)
            mean = loss if math.isnan(mean) else mean + 0.02 * (loss - mean)
            progress.show(self.fraction, f"step {self.step}, loss {mean:.3f}")
            if self.clock.due("evaluate", 60 * self.pace.evaluate_minutes):
                self.evaluate(progress)
            if self.clock.due("checkpoint", 60 * self.pace.checkpoint_minutes):
                self.save()
            if self.clock.due("export", 60 * self.pace.export_minutes):
                self.on_export(self.model)
        self.save()
        return self.evaluate(progress)

    def one_step(self, fraction: float) -> float:
        """One update; returns the loss."""
        options, config = self.options, self.model.config
        batch = draw(
            self.data.samples,
            self.data.features,
            (self.seed, self.step),
            batch=options.batch,
            anchors=options.anchors,
            block=config.block_size,
            mask=config.mask_token_id,
        )
        device = self.model.device
        embeds = self.data.embedding[batch.tokens.to(device)] * config.input_embedding_scale
        parts = (batch.features, batch.anchors, batch.labels, batch.valid)
        loss = self.loss(embeds, *(part.to(device) for part in parts))
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        factor = rate(fraction, options.warm_up, options.cool_down)
        self.muon.step(options.lr * factor, options.weight_decay)
        for group in self.adam.param_groups:
            group["lr"] = options.adam_lr * factor
        self.adam.step()
        self.model.zero_grad()
        self.step += 1
        return loss.item()

    def _loss(
        self, embeds: Tensor, features: Tensor, anchors: Tensor, labels: Tensor, valid: Tensor
    ) -> Tensor:
        with torch.autocast(embeds.device.type, torch.bfloat16, enabled=self.options.autocast):
            hidden = self.model.blocks(features.to(embeds.dtype), embeds, anchors)
            blocks = Blocks(self.model, hidden, labels, valid, self.data.head, self.gamma)
            return self.objective(blocks)

    def evaluate(self, progress: Progress) -> list[Acceptance]:
        """Replay held-out text and say what would have been accepted."""
        data = self.data
        found = accepted(self.model, data.heldout, data.heldout_features, data.embedding, data.head)
        minutes = self.clock.spent / 60
        progress.say(f"{minutes:.1f} min, step {self.step}: " + "; ".join(map(str, found)))
        return found
