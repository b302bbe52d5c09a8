"""`dblast`: a mixture of K blocks from one pass over [anchor, mask, mask, ...]."""

from pathlib import Path
from typing import ClassVar

from torch import Tensor

from draftwood.core.assets import Part
from draftwood.core.options import Sampling
from draftwood.core.proposals import MixtureProposal, Proposal
from draftwood.plugins.drafters.dblast.config import interpolate
from draftwood.plugins.drafters.dblast.model import DBlastModel
from draftwood.plugins.drafters.dflash.drafter import DFlash, DFlashSession
from draftwood.plugins.drafters.options import DBlastOptions


class DBlast(DFlash):
    """The latent-mixture drafter of DBlast (arXiv 2608.05448) over a DFlash drafter.

    One pass gives K branches of independent positions and a prior over them. What is drawn from
    the mixture is the tree policy's choice: `lottery` is the paper's way, one branch decoded
    greedily; `sampled` draws from the mixture itself; scored trees are grown over it as over any
    proposal. A first-generation DFlash checkpoint is a mixture of one.
    """

    part: ClassVar[Part] = "dblast"
    options: DBlastOptions
    model: DBlastModel

    def __init__(self, options: DBlastOptions) -> None:
        super().__init__(options)

    def load(self, folder: Path) -> DBlastModel:
        return DBlastModel.from_folder(folder, allow_pickle=self.options.allow_pickle)

    def prior_temperature(self, sampling: Sampling) -> float:
        """Z_T for requests with this sampling: the option's, else the checkpoint's."""
        given = self.options.prior_temperature
        if given is None:
            return self.model.config.prior_temperature(sampling.temperature)
        return interpolate(given, sampling.temperature) if isinstance(given, tuple) else given

    def proposal(self, slots: Tensor, anchor: int, session: DFlashSession) -> Proposal:
        """The mixture that final-normed states (1 + D, d) give, the anchor's slot first."""
        return MixtureProposal(
            self.model.prior_logits(slots[0]),
            self.model.branch_logits(slots[1:], session.shared.head),
            session.sampling,
            session.shared.vocabulary,
            self.prior_temperature(session.sampling),
        )
