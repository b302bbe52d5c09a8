"""Stage 3: the drafter's training loop. Resumes exactly: a step depends on the seed and its number
alone, and a checkpoint holds everything else."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import nn

from draftwood.core.errors import CheckpointError
from draftwood.training.branch_evaluation import BranchAcceptance
from draftwood.training.config import OptimiserOptions, PaceOptions
from draftwood.training.evaluation import Acceptance
from draftwood.training.interrupts import uninterrupted
from draftwood.training.muon import Muon
from draftwood.training.pace import Clock, Progress, rate, save_checkpoint
from draftwood.training.parallel import agreed, average_gradients, rank
from draftwood.training.trainable import Data, Trainable


class Trainer:
    """One run.

    Args:
        trainable: The drafter.
        data: What it learns from.
        options: Of the optimiser.
        pace: Of checkpoints, evaluations and exports.
        seed: Of batches.
        checkpoint: The file that the run continues from.
        export: Writes a checkpoint of the drafter; called every `pace.export_minutes`.
    """

    def __init__(
        self,
        trainable: Trainable,
        data: Data,
        options: OptimiserOptions,
        pace: PaceOptions,
        *,
        seed: int,
        checkpoint: Path,
        export: Callable[[], None],
    ) -> None:
        self.trainable, self.data, self.options, self.pace = trainable, data, options, pace
        self.seed, self.checkpoint, self.export = seed, checkpoint, export
        self.model = trainable.model
        self.muon = Muon(trainable.matrices)
        orthogonal = {id(p) for p in trainable.matrices}
        self.learnt = [p for p in self.model.parameters() if p.requires_grad]
        rest = [p for p in self.learnt if id(p) not in orthogonal]
        self.adam = torch.optim.AdamW(rest, options.adam_lr, (0.9, 0.95), weight_decay=0.0)
        self.loss = trainable.loss
        if options.compile:
            self.loss = torch.compile(trainable.loss, dynamic=False)
        self.step, self.clock = 0, Clock(pace.pause_file)
        self.within_step = False

    def resume(self) -> bool:
        """Continue from the checkpoint, if there is one."""
        if not self.checkpoint.exists():
            return False
        try:
            state = torch.load(self.checkpoint, weights_only=True)
            saved, shapes = state["muon"], [tuple(buffer.shape) for buffer in self.muon.buffers]
            if (found := [tuple(buffer.shape) for buffer in saved]) != shapes:
                raise ValueError(f"momentum of shapes {found}, not {shapes}")
            self.model.load_state_dict(state["model"])
            self.adam.load_state_dict(state["adam"])
        except (RuntimeError, ValueError, KeyError) as error:
            raise CheckpointError(
                f"{self.checkpoint} is damaged or a checkpoint of another drafter: {error}\n"
                "  begin anew with --restart, or set another work folder"
            ) from error
        self.muon.buffers = [
            buffer.to(fresh.device) for buffer, fresh in zip(saved, self.muon.buffers, strict=True)
        ]
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

    def run(self) -> Sequence[Acceptance | BranchAcceptance]:
        """Train until the budget is spent, or until Ctrl-C, which saves.

        Returns:
            The last evaluation, of the first process.
        """
        progress = Progress("train", self.clock)
        if rank() > 0:
            with uninterrupted():  # the first process says when to stop
                self._run(progress)
            return ()
        try:
            self._run(progress)
        except KeyboardInterrupt:
            self._save_interrupted(progress)
            raise
        self.save()
        return self.evaluate(progress)

    def _run(self, progress: Progress) -> None:
        mean = math.nan
        while True:
            if rank() == 0:  # which sleeps for all; the others wait for its value
                self.clock.wait_while_paused()
            with uninterrupted():
                fraction = agreed(self.fraction, self.learnt[0].device)
                if fraction == math.inf:  # the first process was interrupted
                    raise KeyboardInterrupt
                if fraction >= 1:
                    return
                self.within_step = True
                loss = self.one_step(fraction)
                self.within_step = False
            mean = loss if math.isnan(mean) else mean + 0.02 * (loss - mean)
            if rank() == 0:
                progress.show(self.fraction, f"step {self.step}, loss {mean:.3f}")
                self._now_and_then(progress)

    def _save_interrupted(self, progress: Progress) -> None:
        """Save, unless a second Ctrl-C left a step half applied: the last checkpoint stays."""
        if self.within_step:
            progress.say(f"interrupted within step {self.step}, which is not saved")
            return
        self.save()
        progress.say(
            f"interrupted at step {self.step}; saved in {self.checkpoint}. The same command "
            "continues"
        )
        agreed(math.inf, self.learnt[0].device)  # the other processes stop, too

    def _now_and_then(self, progress: Progress) -> None:
        if self.clock.due("evaluate", 60 * self.pace.evaluate_minutes):
            self.evaluate(progress)
        if self.clock.due("checkpoint", 60 * self.pace.checkpoint_minutes):
            self.save()
        if self.clock.due("export", 60 * self.pace.export_minutes):
            self.export()

    def one_step(self, fraction: float) -> float:
        """One update; returns the loss (of several processes, this one's part of it)."""
        options = self.options
        loss = self.loss(*self.trainable.batch(self.data, (self.seed, self.step)))
        loss.backward()
        average_gradients(self.learnt)
        nn.utils.clip_grad_norm_(self.learnt, 1.0)
        factor = rate(fraction, options.warm_up, options.cool_down)
        self.muon.step(options.lr * factor, options.weight_decay)
        for group in self.adam.param_groups:
            group["lr"] = options.adam_lr * factor
        self.adam.step()
        self.model.zero_grad()
        self.step += 1
        return loss.item()

    def evaluate(self, progress: Progress) -> Sequence[Acceptance | BranchAcceptance]:
        """Replay held-out text and say what would have been accepted."""
        found = self.trainable.evaluate(self.data)
        minutes = self.clock.spent / 60
        progress.say(f"{minutes:.1f} min, step {self.step}: " + "; ".join(map(str, found)))
        return found
