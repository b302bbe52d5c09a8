"""The network of a DBlast drafter: DFlash's, with K branches after its final norm.

q(x_1..b | y) = sum_z q(z | y) prod_i q_i(x_i | y, z) (DBlast, arXiv 2608.05448). All branches share
one forward pass and differ in low rank after the final norm, so K branches cost little more than
one.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from attrs import frozen
from torch import Tensor, nn

from draftwood.core.errors import CheckpointError
from draftwood.plugins.drafters.dblast.config import DBlastConfig
from draftwood.plugins.drafters.dflash.model import DFlashModel

SPREAD = 1.0
"""Initial distance between new branches, relative to the usual initialisation of a layer with input
`a`. Branches that start nearly equal stay nearly equal in training."""


class Branches(nn.Module):
    """The category hidden expander h_z = h + U_z a, a = silu(A h), and the prior P h_0 + b.

    Attributes:
        reduce: A, (r, d), shared by all branches.
        expand: U, (K, d, r).
        prior: P, (K, d), and b.
        cached: The last prepared parameters; None where parameters were replaced since.
    """

    def __init__(self, config: DBlastConfig) -> None:
        super().__init__()
        d, k, r = config.hidden_size, config.branches, config.rank
        self.reduce = nn.Linear(d, r, bias=False)
        self.expand = nn.Parameter(torch.empty(k, d, r))
        self.prior = nn.Linear(d, k)
        self.cached: _Prepared | None = None
        self.register_load_state_dict_post_hook(_drop_cached)

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

    def prepare(self, head: Tensor) -> "_Prepared":
        """The parameters as `branch_logits` reads them, for an output head (V_draft, d)."""
        differences = (head @ (self.expand[1:] - self.expand[0])).mT
        if not torch.is_grad_enabled():  # the layout that a product with few rows reads fastest
            differences = differences.contiguous()
        return _Prepared(
            reduce=self.reduce.weight,
            first=self.expand[0].T,
            differences=differences,
            prior=self.prior.weight,
            bias=self.prior.bias,
            head=head,
            expand=self.expand,
            version=_version(self.expand),
        )

    def prepare_cached(self, head: Tensor) -> "_Prepared":
        """The last result of `prepare`, recomputed for another head or if U has changed since."""
        cached = self.cached
        if cached is None or cached.head is not head or _version(cached.expand) != cached.version:
            cached = self.cached = self.prepare(head)
        return cached

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Branches":
        self.cached = None  # parameters move to another device or dtype
        super()._apply(fn, recurse)
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "cached": None}


def _drop_cached(branches: Branches, _: Any) -> None:
    branches.cached = None


def _version(tensor: Tensor) -> int:
    """How often a tensor was written to; 0 for inference tensors, which do not count."""
    return 0 if tensor.is_inference() else tensor._version


@frozen(eq=False)
class _Prepared:
    """Parameters of branches, and products of parameters alone.

    Attribute look-ups in modules would take as long as products of this size.

    Attributes:
        reduce: A.
        first: U_0 transposed, (r, d).
        differences: E (U_z - U_0) of the other branches, transposed, (K - 1, r, V_draft).
        prior: P, and `bias`: b.
        head: E, (V_draft, d).
        expand: U, and `version`: its version when this was computed.
    """

    reduce: Tensor
    first: Tensor
    differences: Tensor
    prior: Tensor
    bias: Tensor
    head: Tensor
    expand: Tensor
    version: int


class DBlastModel(DFlashModel):
    """Computes K branches of logits for a block's slots, and a prior over them.

    With one branch it is its DFlash model, parameter for parameter.
    """

    config_class: ClassVar[type[DBlastConfig]] = DBlastConfig
    config: DBlastConfig

    def __init__(self, config: DBlastConfig) -> None:
        super().__init__(config)
        self.branches: Branches | None = Branches(config) if config.branches > 1 else None

    def with_branches(
        self, branches: int, rank: int, seed: int = 0, spread: float = SPREAD
    ) -> "DBlastModel":
        """A model with `branches` new branches that shares this one's weights, for training.

        Raises:
            CheckpointError: This model has several branches already.
        """
        if self.config.branches > 1:
            raise CheckpointError(f"{self.config.source}: has {self.config.branches} branches")
        config = DBlastConfig.from_dflash(self.config, branches, rank)
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
        """Initialise expander and prior for training; nothing to do with one branch."""
        if self.branches is not None:
            self.branches.initialise(seed, spread)

    def branch_logits(self, hidden: Tensor, head: Tensor | None = None) -> Tensor:
        """(..., d) final-normed states -> (K, ..., V_draft), multiplier and soft cap applied.

        The first branch is E (h + U_0 a); another branch differs from it by E (U_z - U_0) a, r
        numbers per token. Without gradients, products of parameters alone are kept between calls.

        Args:
            head: The target's (V, d) output weight, for a checkpoint without its own.
        """
        branches = self.branches
        if branches is None:
            return self.logits(hidden, head)[None]
        if hidden.ndim != 2:
            logits = self.branch_logits(hidden.reshape(-1, hidden.shape[-1]), head)
            return logits.view(len(logits), *hidden.shape[:-1], logits.shape[-1])
        weight = self.output_weight(head)
        graded = torch.is_grad_enabled()
        prepared = branches.prepare(weight) if graded else branches.prepare_cached(weight)
        reduced = F.silu(F.linear(hidden, prepared.reduce))
        states = torch.addmm(hidden, reduced, prepared.first)
        per_branch = reduced.expand(len(prepared.differences), -1, -1)
        if graded:
            first = states @ weight.T
            others = torch.baddbmm(first, per_branch, prepared.differences)
            return self.scale_logits(torch.cat((first[None], others)))
        # Each product is written to its place in the result.
        logits = hidden.new_empty((1 + len(per_branch), len(hidden), len(weight)))
        first = torch.mm(states, weight.T, out=logits[0])
        torch.baddbmm(first, per_branch, prepared.differences, out=logits[1:])
        return self.scale_logits(logits)

    def prior_logits(self, anchor_hidden: Tensor) -> Tensor:
        """(..., d) final-normed states of slot 0 -> (..., K) logits of q(z | y)."""
        branches = self.branches
        if branches is None:
            return anchor_hidden.new_zeros((*anchor_hidden.shape[:-1], 1))
        cached = branches.cached
        if cached is None:
            return branches.prior(anchor_hidden)
        return F.linear(anchor_hidden, cached.prior, cached.bias)
