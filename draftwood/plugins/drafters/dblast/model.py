"""The network of a DBlast drafter: DFlash's, with K branches after its final norm.

q(x_1..b | y) = sum_z q(z | y) prod_i q_i(x_i | y, z) (DBlast, arXiv 2608.05448). All branches share
one pass: they part behind the final norm, in low rank, so that K of them cost little more than one.
"""

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftwood.core.errors import CheckpointError
from draftwood.plugins.drafters.dblast.config import DBlastConfig
from draftwood.plugins.drafters.dflash.model import DFlashModel

SPREAD = 1.0
"""How far apart fresh branches start, in units of what a layer with `a` as its input would begin
with. Branches that start nearly equal stay so: nothing tells them apart."""


class Branches(nn.Module):
    """The category hidden expander h_z = h + U_z a, a = silu(A h), and the prior P h_0 + b.

    reduce: A, (r, d), shared by all branches. expand: U, (K, d, r). prior: P, (K, d), and b.
    """

    def __init__(self, config: DBlastConfig) -> None:
        super().__init__()
        d, k, r = config.hidden_size, config.branches, config.rank
        self.reduce = nn.Linear(d, r, bias=False)
        self.expand = nn.Parameter(torch.empty(k, d, r))
        self.prior = nn.Linear(d, k)

    def initialise(self, seed: int, spread: float = SPREAD) -> None:
        """A and U random, U of standard deviation spread / sqrt(r), and a uniform prior."""
        generator = torch.Generator().manual_seed(seed)

        def normal(like: Tensor, deviation: float) -> Tensor:
            return torch.randn(like.shape, generator=generator).to(like) * deviation

        with torch.no_grad():
            self.reduce.weight.copy_(normal(self.reduce.weight, self.reduce.in_features**-0.5))
            self.expand.copy_(normal(self.expand, spread * self.expand.shape[-1] ** -0.5))
            self.prior.weight.zero_()
            assert self.prior.bias is not None
            self.prior.bias.zero_()


class DBlastModel(DFlashModel):
    """Context features in, K laws over each of the block's slots out, and a law over the K.

    With one branch it is its DFlash model, parameter for parameter.
    """

    config: DBlastConfig

    def __init__(self, config: DBlastConfig) -> None:
        super().__init__(config)
        self.branches: Branches | None = Branches(config) if config.branches > 1 else None
        self._projected: tuple[Tensor, int, Tensor] | None = None

    @classmethod
    def from_folder(cls, folder: Path | str, allow_pickle: bool = False) -> "DBlastModel":
        """Config and weights of a DBlast or first-generation DFlash checkpoint, in the weights'
        own dtype, on the CPU.

        Raises CheckpointError naming every missing or unexpected parameter.
        """
        folder = Path(folder)
        with torch.device("meta"):
            model = cls(DBlastConfig.from_file(folder))
        model.load_weights(folder, allow_pickle)
        return model.eval()

    def with_branches(
        self, branches: int, rank: int, seed: int = 0, spread: float = SPREAD
    ) -> "DBlastModel":
        """This model of one branch, its weights shared, with `branches` fresh ones: where training
        from a DFlash checkpoint starts. Raises CheckpointError if it has several already."""
        if self.config.branches > 1:
            raise CheckpointError(f"{self.config.source}: has {self.config.branches} branches")
        config = DBlastConfig.of(self.config, branches, rank)
        with torch.device("meta"):
            model = DBlastModel(config)
        if self.lm_head is not None:
            model.lm_head = nn.Linear(1, 1, bias=False, device="meta")
        model.d2t = self.d2t
        state: dict[str, Tensor] = dict(self.state_dict())
        if model.branches is not None:
            model.branches.to_empty(device=self.device).to(self.dtype)
            model.branches.initialise(seed, spread)
            own = model.branches.state_dict()
            state |= {f"branches.{name}": tensor for name, tensor in own.items()}
        model.load_state_dict(state, assign=True)
        return model

    def initialise_branches(self, seed: int, spread: float = SPREAD) -> None:
        """Set expander and prior to where training starts: a random `a`, branches that differ, a
        uniform prior. Nothing to do with one branch."""
        if self.branches is not None:
            self.branches.initialise(seed, spread)

    def branch_logits(self, hidden: Tensor, head: Tensor | None = None) -> Tensor:
        """(..., d) final-normed states -> (K, ..., V_draft), multiplier and soft cap applied.

        E (h + U_z a) is computed as E h + (E U_z) a: the head reads a row once, and a branch adds
        r numbers to each of its V. head: the target's (V, d) output weight; the checkpoint's own
        is used where it has one. E U_z is kept between calls unless gradients flow to U.
        """
        if self.branches is None:
            return self.logits(hidden, head)[None]
        weight = self.output_weight(head)
        rows = hidden.reshape(-1, hidden.shape[-1])
        shared = rows @ weight.T
        # Products this small take less time than a module's call around them.
        reduced = F.silu(F.linear(rows, self.branches.reduce.weight))
        expanded = self._expanded_head(weight)
        # One pass over the K x rows x V results: products land on top of the shared ones.
        every = torch.baddbmm(
            shared.expand(len(expanded), -1, -1), reduced.expand(len(expanded), -1, -1), expanded
        )
        return self.finished(every.view(-1, *hidden.shape[:-1], weight.shape[0]))

    def prior_logits(self, anchor_hidden: Tensor) -> Tensor:
        """(..., d) final-normed states of slot 0 -> (..., K) logits of q(z | y)."""
        if self.branches is None:
            return anchor_hidden.new_zeros((*anchor_hidden.shape[:-1], 1))
        prior = self.branches.prior
        return F.linear(anchor_hidden, prior.weight, prior.bias)

    def _expanded_head(self, weight: Tensor) -> Tensor:
        """E U_z of all branches, transposed: (K, r, V_draft). Kept in the order that a product with
        few rows reads fastest."""
        assert self.branches is not None
        expand = self.branches.expand
        if torch.is_grad_enabled() and (expand.requires_grad or weight.requires_grad):
            return (weight @ expand).mT
        version = 0 if expand.is_inference() else expand._version
        kept = self._projected
        if kept is None or kept[0] is not weight or kept[1] != version:
            kept = self._projected = (weight, version, (weight @ expand).mT.contiguous())
        return kept[2]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "DBlastModel":
        self._projected = None  # parameters move to another device or dtype
        super()._apply(fn, recurse)
        return self
