"""What an algorithm brings to be trained: its batches, its loss, how it is judged and exported.

Sampling, features, the optimiser, budgets, checkpoints and resuming are the same for all.
"""

from abc import ABC, abstractmethod
from pathlib import Path

from attrs import frozen
from torch import Tensor, nn

from draftwood.training.evaluation import Acceptance
from draftwood.training.features import Features
from draftwood.training.sampling import Samples


@frozen(eq=False)
class Data:
    """What training reads."""

    samples: Samples
    features: Features
    heldout: Samples
    heldout_features: Features


class Trainable(ABC):
    """A drafter in training. model: its network, all of whose parameters are trained."""

    model: nn.Module

    @property
    @abstractmethod
    def layers(self) -> tuple[int, ...]:
        """The 0-based target layers whose states `Data` holds for each token, side by side."""

    @abstractmethod
    def batch(self, data: Data, key: tuple[int, int]) -> tuple[Tensor, ...]:
        """What `loss` is called with, on the model's device: a function of key = (seed, step)
        alone, in the same shapes at every step."""

    @abstractmethod
    def loss(self, *batch: Tensor) -> Tensor:
        """A scalar. Compiled where the file asks for it, so it reads no values."""

    @abstractmethod
    def evaluate(self, data: Data) -> list[Acceptance]:
        """What would have been accepted of the held-out text, an entry per temperature."""

    @abstractmethod
    def export(self, folder: Path) -> None:
        """Write a checkpoint that the drafter's plugin loads, replacing an older one."""
