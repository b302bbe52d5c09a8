"""The weights of the output head and the embedding, for drafters that share them."""

from typing import TypeGuard

import torch
from torch import Tensor, nn

from draftwood.core.hf.parallel import whole
from draftwood.core.hf.quantised import is_plain

_ROWS = 1024
"""Rows of the identity that a quantised head is called on at a time."""


def head_weight(head: nn.Module, hidden: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """(V, hidden) weight of an output head on `device`.

    The stored weight of a quantised head is no matrix of numbers. Such a head is called on the
    rows of an identity matrix, which gives the matrix that it multiplies by.
    """
    weight = head.weight
    if _is_matrix(weight, hidden):
        return whole(weight, device)
    with torch.inference_mode():
        identity = torch.eye(hidden, dtype=dtype, device=device)
        columns = [head(rows) - _bias(head) for rows in identity.split(_ROWS)]
        return torch.cat(columns).T.contiguous()


def embedding_weight(embedding: nn.Embedding, device: torch.device) -> Tensor:
    """(V, hidden) weight of an embedding on `device`; a quantised one is called on every token.

    A factor that the module applies to its rows (`embed_scale` of Gemma) is not part of its weight.
    """
    weight = embedding.weight
    if _is_matrix(weight, embedding.embedding_dim):
        return whole(weight, device)
    tokens = torch.arange(embedding.num_embeddings, device=device)
    with torch.inference_mode():
        rows = torch.cat([embedding(part) for part in tokens.split(_ROWS)])
        return rows / getattr(embedding, "embed_scale", 1.0)


def _is_matrix(weight: object, hidden: int) -> TypeGuard[Tensor]:
    """Whether the weight is plain numbers, not packed ones."""
    return is_plain(weight) and weight.is_floating_point() and weight.shape[-1] == hidden


def _bias(head: nn.Module) -> Tensor | float:
    bias = getattr(head, "bias", None)
    return 0.0 if bias is None else bias
