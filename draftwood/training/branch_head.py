"""What K branches say about labels, without K float32 copies of (positions, V) and their gradients.

logits_z = E h + (E U_z) a for every branch, position and token: at V = 2048 that is most of a
training step. Positions are taken in chunks that stay in a cache; of each branch only
exp(logits - max) is kept, in the precision of the matrix products, and the gradient of the logits,
g (one-hot - softmax), is made from it and multiplied away chunk by chunk. Gradients to h of all
branches meet before the product with E, so the wide products are as many as for one branch.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from draftwood.plugins.drafters.dblast.model import DBlastModel
from draftwood.plugins.drafters.dflash.model import DFlashModel

CHUNK = {"cpu": 2**21, "cuda": 2**27}
"""Logits of all branches that are in work at once, by device."""


def label_log_probs(
    model: DFlashModel,
    hidden: Tensor,
    labels: Tensor,
    head: Tensor,
    temperatures: Tensor | None = None,
    compiled: bool = False,
    previous: Tensor | None = None,
) -> Tensor:
    """log q(label | z) of each branch: hidden (N, D, d) and labels (N, D) -> (N, K, D), float32.

    head: the target's (V, d), without gradient. temperatures: (N,) > 0 of the branches, None for
    1. compiled: run the chunks' kernels compiled. previous: (N, D), the tokens before the labels,
    which a selector asks for. Under autocast the matrix products are in its dtype. For models
    without soft cap and multiplier, which training does not make.
    """
    branches = model.branches if isinstance(model, DBlastModel) else None
    scale = 1.0 if temperatures is None else 1 / temperatures[:, None, None]
    if branches is None:
        logits = model.logits(hidden * scale, head).float()
        if model.selector is not None:
            assert previous is not None
            logits = logits + scale * model.selector.added(hidden, previous).float()
        losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
        return -losses.view(labels.shape)[:, None]
    flat = (hidden * scale).flatten(0, 1)  # logits are linear in both
    reduced = (F.silu(branches.reduce(hidden)) * scale).flatten(0, 1)
    expanded = head @ branches.expand
    dtype = expanded.dtype
    found = _run(
        flat.to(dtype), reduced.to(dtype), head.to(dtype), expanded, labels.flatten(), compiled
    )
    return found.view(*labels.shape, -1).mT


@torch.compiler.disable
def _run(*args: Any) -> Tensor:
    """Outside an enclosing graph, which would unroll the chunks."""
    return cast(Tensor, _LabelLogProbs.apply(*args))


class _LabelLogProbs(torch.autograd.Function):
    """(hidden (M, d), reduced (M, r), head (V, d), expanded (K, V, r), labels (M,)) -> (M, K)."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        reduced: Tensor,
        head: Tensor,
        expanded: Tensor,
        labels: Tensor,
        compiled: bool,
    ) -> Tensor:
        k, v, r = expanded.shape
        look = _kernel(_looked_up, compiled)
        wide = expanded.reshape(k * v, r)
        parts, kept = [], []
        for rows in _chunks(len(hidden), k * v, hidden.device):
            shared = hidden[rows] @ head.T
            added = (reduced[rows] @ wide.T).view(-1, k, v)
            found, exps, sums = look(shared, added, labels[rows])
            parts.append(found)
            kept.append((exps, sums))
        ctx.save_for_backward(hidden, reduced, head, expanded, labels)
        ctx.kept, ctx.compiled = kept, compiled
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads  # (M, K)
        hidden, reduced, head, expanded, labels = ctx.saved_tensors
        k, v, r = expanded.shape
        wide = expanded.view(k * v, r)
        scale = _kernel(_scaled, ctx.compiled)
        to_hidden, to_reduced = torch.empty_like(hidden), torch.empty_like(reduced)
        to_wide = torch.zeros(k * v, r, dtype=torch.float32, device=hidden.device)
        chunks = _chunks(len(hidden), k * v, hidden.device)
        for rows, (exps, sums) in zip(chunks, ctx.kept, strict=True):
            logits, together = scale(exps, -grad[rows] / sums)
            logits = logits.view(-1, k * v)
            torch.mm(together, head, out=to_hidden[rows])
            torch.mm(logits, wide, out=to_reduced[rows])
            to_wide += logits.T @ reduced[rows]
        # The one-hot half of the gradient, label by label.
        grad = grad.to(hidden.dtype)
        to_hidden += grad.sum(-1, keepdim=True) * head[labels]
        to_reduced += (grad.T[..., None] * expanded[:, labels]).sum(0)
        to_expanded = to_wide.view(k, v, r)
        to_expanded.index_add_(1, labels, (grad.T[..., None] * reduced).float())
        return to_hidden, to_reduced, None, to_expanded.to(expanded.dtype), None, None


def _looked_up(shared: Tensor, added: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """shared (c, V), added (c, K, V), labels (c,) -> log-probabilities of the labels (c, K),
    exp(logits - max) in the dtype of `shared`, and its sums (c, K)."""
    logits = shared.float()[:, None] + added.float()
    most = logits.amax(-1, keepdim=True)
    exps = (logits - most).exp()
    sums = exps.sum(-1)
    at = labels[:, None, None].expand(-1, logits.shape[1], 1)
    found = (logits.gather(-1, at) - most)[..., 0] - sums.log()
    return found, exps.to(shared.dtype), sums


def _scaled(exps: Tensor, by: Tensor) -> tuple[Tensor, Tensor]:
    """The softmax half of the logits' gradient, (c, K, V), and its sum over branches."""
    grad = exps.float() * by[..., None]
    return grad.to(exps.dtype), grad.sum(1).to(exps.dtype)


_COMPILED: dict[Callable[..., Any], Callable[..., Any]] = {}


def _kernel(function: Callable[..., Any], compiled: bool) -> Callable[..., Any]:
    if not compiled:
        return function
    if function not in _COMPILED:
        _COMPILED[function] = torch.compile(function, dynamic=False)
    return _COMPILED[function]


def _chunks(rows: int, width: int, device: torch.device) -> list[slice]:
    """Equal steps, so that kernels are compiled for one shape (and one last, smaller one)."""
    step = max(1, CHUNK.get(device.type, CHUNK["cuda"]) // width)
    return [slice(at, at + step) for at in range(0, rows, step)]
