"""What a new drafter takes from its target besides embedding and head."""

from typing import Any

import torch
from torch import Tensor, nn

from draftwood.core.hf.head import embedding_weight
from draftwood.core.hf.taps import decoder_of


def rope_theta(text: Any) -> float:
    """The base of the rotary embeddings of a text config; where kinds of layers have their own,
    that of the full ones; where there are none, the common 10000."""
    parameters = getattr(text, "rope_parameters", None) or {}
    return float((parameters.get("full_attention") or parameters).get("rope_theta", 10_000.0))


@torch.no_grad()
def embedding_scale(model: Any) -> float:
    """The factor that the model applies to the rows of its embedding matrix: sqrt(d) in Gemma, 1 in
    most models."""
    embedding = model.get_input_embeddings()
    device = embedding.weight.device
    ids = torch.arange(min(64, embedding.num_embeddings), device=device)
    read = embedding(ids).float().norm()
    stored = embedding_weight(embedding, device)[ids].float().norm()  # may be packed, as stored
    return (read / stored).item() if stored > 0 else 1.0


@torch.no_grad()
def final_norm(model: Any) -> Tensor | None:
    """(d,) factor by which the target's last norm multiplies states of unit variance: its weight,
    or 1 + its weight in some models. None if the target has no such norm."""
    norm: nn.Module | None = getattr(decoder_of(model), "norm", None)
    weight = getattr(norm, "weight", None)
    if norm is None or weight is None:
        return None
    signs = torch.ones_like(weight)
    signs[::2] = -1  # of mean 0 and variance 1, so norms of either kind leave them as they are
    return norm(signs) * signs
