"""`drafter.algorithm: dblast`: block drafters of several branches (arXiv 2608.05448)."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from draftwood.core.checkpoints import fetch
from draftwood.core.errors import DraftwoodError, PairingError
from draftwood.plugins.drafters.dblast.config import DBlastConfig
from draftwood.plugins.drafters.dblast.model import DBlastModel
from draftwood.plugins.drafters.dflash.config import DFlashConfig
from draftwood.training.blocks import TrainableBlocks, check_shape, drafter_config, initialise
from draftwood.training.branch_evaluation import BranchAcceptance, judged
from draftwood.training.config import DBlastShape, DBlastTraining, MixtureOptions
from draftwood.training.evaluation import Acceptance
from draftwood.training.objectives import find, unbalance
from draftwood.training.trainable import Data


class TrainableBranches(TrainableBlocks):
    """A DBlast drafter. With one branch it is a DFlash drafter, judged as others are here."""

    model: DBlastModel
    options: MixtureOptions
    wants_states = True

    @classmethod
    def start(cls, config: DBlastTraining, target: Any, tokenizer: Any) -> "TrainableBranches":
        """A new one, or one that goes on from `drafter.init`, for a loaded target. Raises
        PairingError where that checkpoint, the file and the target do not fit."""
        shape, options = config.drafter, config.train
        find(options)
        if options.balance and shape.branches == 1:
            raise DraftwoodError("train.balance: one branch has nothing to balance; leave it out")
        base = drafter_config(shape, target.model, tokenizer)
        if shape.init is None:
            model = DBlastModel(DBlastConfig.from_dflash(base, shape.branches, shape.rank))
            initialise(model, target.model)
            model.initialise_branches(config.training_seed, shape.spread)
        else:
            model = _from_checkpoint(shape, base, config.training_seed)
        return cls(
            model.to(target.device).train(),
            target.embedding_weight().detach().float(),
            target.head_weight().detach().float(),
            options,
        )

    @property
    def matrices(self) -> list[nn.Parameter]:
        """All but the prior's, whose rows are logits of their own and no map of a space."""
        prior = set() if self.model.branches is None else {self.model.branches.prior.weight}
        return [p for p in super().matrices if p not in prior]

    def loss(self, *batch: Tensor) -> Tensor:
        blocks = self._blocks(*batch)
        loss = self.objective(blocks)
        if self.options.balance:
            loss = loss + self.options.balance * unbalance(blocks.prior)
        return loss

    def _prior(self, anchors: Tensor) -> Tensor:
        return self.model.prior_logits(anchors).float().log_softmax(-1)

    def evaluate(self, data: Data) -> Sequence[Acceptance | BranchAcceptance]:
        assert data.heldout_states is not None
        found: list[BranchAcceptance] = judged(
            self.model,
            data.heldout,
            data.heldout_features,
            data.heldout_states,
            self.embedding,
            self.head,
        )
        return found


def _from_checkpoint(shape: DBlastShape, base: DFlashConfig, seed: int) -> DBlastModel:
    """The checkpoint `init` in float32, given fresh branches if it has none."""
    model = DBlastModel.from_folder(fetch(str(shape.init))).float()
    check_shape(model.config, base, str(shape.init))
    if model.config.branches == 1:
        model = model.with_branches(shape.branches, shape.rank, seed, shape.spread)
    if (model.config.branches, model.config.rank) != (
        shape.branches,
        shape.rank if shape.branches > 1 else 0,
    ):
        raise PairingError(
            f"drafter.init: {shape.init} has {model.config.branches} branches of rank "
            f"{model.config.rank}, and the file asks for {shape.branches} of {shape.rank}"
        )
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    return model
