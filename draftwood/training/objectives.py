"""What a drafter is trained to do, by name: `train.objective` in a training file.

An objective sees one packed batch of blocks and returns a scalar. Add one with `@objective(name)`.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from attrs import define
from torch import Tensor

from draftwood.core.errors import ConfigError, Problem
from draftwood.plugins.drafters.dflash.model import DFlashModel

PAPER_GAMMA = {16: 7.0, 10: 5.0, 8: 4.0}


@define(eq=False)  # torch.compile cannot build frozen ones
class Blocks:
    """One batch. hidden: (S, A, B, d), final-normed states of all slots, the anchor's included.

    labels: (S, A, B - 1), the target's own next tokens. valid: (S, A, B - 1), False past the end
    of a text. head: (V, d). gamma: decay of later positions' weights.
    """

    model: DFlashModel
    hidden: Tensor
    labels: Tensor
    valid: Tensor
    head: Tensor
    gamma: float

    def logits(self) -> Tensor:
        """(S, A, B - 1, V) of the mask slots."""
        return self.model.logits(self.hidden[:, :, 1:], self.head)


Objective = Callable[[Blocks], Tensor]
OBJECTIVES: dict[str, Objective] = {}


def objective(name: str) -> Callable[[Objective], Objective]:
    """Register a function of `Blocks` under a name."""

    def register(function: Objective) -> Objective:
        if name in OBJECTIVES:
            raise ValueError(f"an objective named {name!r} is registered already")
        OBJECTIVES[name] = function
        return function

    return register


def find(name: str) -> Objective:
    """The objective of a name. Raises ConfigError naming the choices."""
    if name not in OBJECTIVES:
        choices = f"choices: {', '.join(sorted(OBJECTIVES))}"
        problem = Problem("", "train.objective", f"unknown objective {name!r}", (choices,))
        raise ConfigError([problem])
    return OBJECTIVES[name]


def gamma_for(block_size: int) -> float:
    """The paper's decay for 8, 10 and 16 slots, and the line through its ends for other sizes."""
    return PAPER_GAMMA.get(block_size, 4.0 + (block_size - 8) * 3.0 / 8.0)


def cross_entropy(blocks: Blocks) -> Tensor:
    """(S, A, B - 1) in nats, float32."""
    logits = blocks.logits().float()
    losses = F.cross_entropy(logits.flatten(0, 2), blocks.labels.flatten(), reduction="none")
    return losses.view(blocks.labels.shape)


def weighted_mean(losses: Tensor, weights: Tensor) -> Tensor:
    return (losses * weights).sum() / weights.sum().clamp_min(1.0)


@objective("nll")
def nll(blocks: Blocks) -> Tensor:
    """Mean cross-entropy, every position alike."""
    return weighted_mean(cross_entropy(blocks), blocks.valid.float())


@objective("nll_weighted")
def nll_weighted(blocks: Blocks) -> Tensor:
    """DFlash's: position k = 1, 2, ... weighs exp(-(k - 1) / gamma), since a token counts only if
    all before it were right. arXiv 2602.06036."""
    slots = blocks.labels.shape[-1]
    weights = torch.exp(-torch.arange(slots, device=blocks.labels.device) / blocks.gamma)
    return weighted_mean(cross_entropy(blocks), weights * blocks.valid)
