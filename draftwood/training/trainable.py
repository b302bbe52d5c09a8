"""The interface of a training algorithm: its batches, loss, evaluation and export.

Sampling, features, the optimiser, budgets, checkpoints and resuming are the same for all.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from attrs import frozen
from torch import Tensor, nn

from draftwood.training.branch_evaluation import BranchAcceptance
from draftwood.training.evaluation import Acceptance
from draftwood.training.features import Features
from draftwood.training.sampling import Prompts, Samples


@frozen(eq=False)
class Data:
    """What training reads.

    likelihoods: (N, L) of the samples' tokens; heldout_states: (N, L, d) of the target (see
    `likelihood`); prompts: what those of the samples were drawn from. All None where the trainable
    does not read them.
    """

    samples: Samples
    features: Features
    heldout: Samples
    heldout_features: Features
    likelihoods: np.ndarray | None = None
    heldout_states: np.ndarray | None = None
    prompts: Prompts | None = None


class Trainable(ABC):
    """A drafter in training.

    model: its network; parameters that require a gradient are trained. wants_likelihoods,
    wants_states, wants_prompts: what `Data` must hold besides samples and features.
    """

    model: nn.Module
    wants_likelihoods: bool = False
    wants_states: bool = False
    wants_prompts: bool = False

    @property
    def matrices(self) -> list[nn.Parameter]:
        """The parameters that Muon trains; Adam trains the rest."""
        return [p for p in self.model.parameters() if p.ndim == 2 and p.requires_grad]

    @property
    @abstractmethod
    def layers(self) -> tuple[int, ...]:
        """The 0-based target layers whose states `Data` holds for each token, side by side."""

    def prepare(self, data: Data) -> None:  # noqa: B027, most depend on nothing
        """Set up what depends on the samples, before a checkpoint is resumed and the first batch
        is made: a function of `data` alone."""

    @abstractmethod
    def batch(self, data: Data, key: tuple[int, int]) -> tuple[Tensor, ...]:
        """What `loss` is called with, on the model's device: a function of key = (seed, step)
        alone, in the same shapes at every step. Of several processes each has its share."""

    @abstractmethod
    def loss(self, *batch: Tensor) -> Tensor:
        """A scalar. Compiled where the file asks for it, so it reads no values. Means over a batch
        are `objectives.weighted_mean`s, so that processes can share it."""

    @abstractmethod
    def evaluate(self, data: Data) -> Sequence[Acceptance | BranchAcceptance]:
        """What would have been accepted of the held-out text, an entry per temperature."""

    @abstractmethod
    def export(self, folder: Path) -> None:
        """Write a checkpoint that the drafter's plugin loads, replacing an older one."""
