"""The network of a DBlast drafter: DFlash's, with K branches after its final norm.

q(x_1..b | y) = sum_z q(z | y) prod_i q_i(x_i | y, z) (DBlast, arXiv 2608.05448). All branches share
one pass: they part behind the final norm, in low rank, so that K of them cost little more than one.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from attrs import frozen
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
        self.ready: _Ready | None = None  # dropped where parameters are replaced
        self.register_load_state_dict_post_hook(_forget)

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

    def prepared(self, head: Tensor) -> "_Ready":
        apart = (head @ (self.expand[1:] - self.expand[0])).mT
        if not torch.is_grad_enabled():  # the order that a product with few rows reads fastest
            apart = apart.contiguous()
        return _Ready(
            reduce=self.reduce.weight,
            first=self.expand[0].T,
            apart=apart,
            prior=self.prior.weight,
            bias=self.prior.bias,
            head=head,
            expand=self.expand,
            version=_version(self.expand),
        )

    def kept(self, head: Tensor) -> "_Ready":
        """The last `prepared`, made again where it is not of this head or U has changed since."""
        ready = self.ready
        if ready is None or ready.head is not head or _version(ready.expand) != ready.version:
            ready = self.ready = self.prepared(head)
        return ready

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Branches":
        self.ready = None  # parameters move to another device or dtype
        super()._apply(fn, recurse)
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "ready": None}


def _forget(branches: Branches, _: Any) -> None:
    branches.ready = None


@frozen(eq=False)
class _Ready:
    """Branches as a pass reads them: to look parameters up in modules takes as long as products
    this small.

    reduce: A. first: U_0 transposed, (r, d). apart: E (U_z - U_0) of the other branches,
    transposed, (K - 1, r, V_draft). prior, bias: of the prior. head: E. expand: U, and its version
    then.
    """

    reduce: Tensor
    first: Tensor
    apart: Tensor
    prior: Tensor
    bias: Tensor
    head: Tensor
    expand: Tensor
    version: int


class DBlastModel(DFlashModel):
    """Context features in, K distributions over each of the block's slots out, and a distribution
    over the K.

    With one branch it is its DFlash model, parameter for parameter.
    """

    config: DBlastConfig

    def __init__(self, config: DBlastConfig) -> None:
        super().__init__(config)
        self.branches: Branches | None = Branches(config) if config.branches > 1 else None

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

        The head reads the first branch's states, E (h + U_0 a), and what sets another branch apart
        from it is r numbers a token, E (U_z - U_0) a. head: the target's (V, d) output weight; the
        checkpoint's own is used where it has one. What follows from the parameters alone is kept
        between calls without gradients.
        """
        branches = self.branches
        if branches is None:
            return self.logits(hidden, head)[None]
        if hidden.ndim != 2:
            every = self.branch_logits(hidden.reshape(-1, hidden.shape[-1]), head)
            return every.view(len(every), *hidden.shape[:-1], every.shape[-1])
        weight = self.output_weight(head)
        graded = torch.is_grad_enabled()
        ready = branches.prepared(weight) if graded else branches.kept(weight)
        reduced = F.silu(F.linear(hidden, ready.reduce))
        states = torch.addmm(hidden, reduced, ready.first)
        each = reduced.expand(len(ready.apart), -1, -1)
        if graded:
            first = states @ weight.T
            every = torch.cat((first[None], torch.baddbmm(first, each, ready.apart)))
        else:  # each product is written where it stays
            every = hidden.new_empty((1 + len(each), len(hidden), len(weight)))
            first = torch.mm(states, weight.T, out=every[0])
            torch.baddbmm(first, each, ready.apart, out=every[1:])
        return self.finished(every)

    def prior_logits(self, anchor_hidden: Tensor) -> Tensor:
        """(..., d) final-normed states of slot 0 -> (..., K) logits of q(z | y)."""
        branches = self.branches
        if branches is None:
            return anchor_hidden.new_zeros((*anchor_hidden.shape[:-1], 1))
        ready = branches.ready
        if ready is None:
            return branches.prior(anchor_hidden)
        return F.linear(anchor_hidden, ready.prior, ready.bias)


def _version(tensor: Tensor) -> int:
    """How often a tensor was written to, as far as it says so."""
    return 0 if tensor.is_inference() else tensor._version
