"""`dblast`: a mixture of K blocks from one forward pass over [anchor, mask, ...]."""

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

    One forward pass gives K branches of independent positions and a prior over them. The tree
    policy decides how the mixture is used: `lottery` draws one branch and decodes it greedily, as
    in the paper; `sampled` draws from the mixture; scored trees grow as over any proposal. A
    first-generation DFlash checkpoint is a mixture of one.
    """

    part: ClassVar[Part] = "dblast"
    options: DBlastOptions
    model: DBlastModel

    def load(self, folder: Path) -> DBlastModel:
        return DBlastModel.from_folder(folder, allow_pickle=self.options.allow_pickle)

    def prior_temperature(self, sampling: Sampling) -> float:
        """Z_T for requests with this sampling: the option's, else the checkpoint's."""
        option = self.options.prior_temperature
        if option is None:
            return self.model.config.prior_temperature(sampling.temperature)
        return interpolate(option, sampling.temperature) if isinstance(option, tuple) else option

    def proposal(self, slots: Tensor, anchor: int, session: DFlashSession) -> Proposal:
        """The mixture from final-normed states (1 + D, d), the anchor's slot first."""
        return MixtureProposal(
            self.model.prior_logits(slots[0]),
            self.model.branch_logits(slots[1:], session.shared.head),
            session.sampling,
            session.shared.vocabulary,
            self.prior_temperature(session.sampling),
        )
