"""A target's own distributions along a text that is already there."""

from collections.abc import Sequence

import torch
from torch import Tensor

from draftwood.core.interfaces import Target
from draftwood.core.node_distributions import Processor
from draftwood.core.tree import TokenTree

CHUNK = 64


def scores_along(
    target: Target,
    prompt: Sequence[int],
    tokens: Sequence[int],
    processors: Sequence[Processor] = (),
) -> Tensor:
    """(len(tokens), V) scores of each token given what comes before it, processors applied.

    Teacher forcing through the same interface that decodes: chains of CHUNK tokens a forward.
    """
    session = target.open()
    rows = [_single(session.prefill(prompt).logits)]
    for start in range(0, len(tokens) - 1, CHUNK):
        chunk = list(tokens[start : min(start + CHUNK, len(tokens) - 1)])
        n = len(chunk)
        tree = TokenTree.of(chunk, list(range(-1, n - 1)), list(range(n)), [0.0] * n)
        (forwarded,) = target.forward([(session, tree)])
        rows.append(_single(forwarded.logits))
        session.commit(range(n))
    scores = torch.cat(rows)
    if not processors:
        return scores
    processed = []
    for i, row in enumerate(scores):
        ids = torch.tensor([[*prompt, *tokens[:i]]])
        one = row[None]
        for processor in processors:
            one = processor(ids, one)
        processed.append(one)
    return torch.cat(processed)


def _single(logits: Tensor) -> Tensor:
    """On the host, in float32 at least."""
    logits = logits.cpu()
    return logits if logits.dtype == torch.float64 else logits.float()
