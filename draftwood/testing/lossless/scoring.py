"""A target's own scores along a given text."""

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
    """Score each token of a text, by teacher forcing through the interface that decodes.

    Args:
        target: The model.
        prompt: Token ids before the text.
        tokens: Token ids of the text; scored in chains of CHUNK tokens a forward.
        processors: Logits processors, applied with the ids before each token.

    Returns:
        (len(tokens), V) scores of each token given what comes before it, on the host, in float32 or
        float64.
    """
    session = target.open()
    rows = [session.prefill(prompt).logits]
    for start in range(0, len(tokens) - 1, CHUNK):
        tree = TokenTree.chain(tokens[start : min(start + CHUNK, len(tokens) - 1)])
        (forwarded,) = target.forward([(session, tree)])
        rows.append(forwarded.logits)
        session.commit(range(len(tree)))
    scores = torch.cat([row.cpu() for row in rows])
    scores = scores if scores.dtype == torch.float64 else scores.float()
    if not processors:
        return scores
    processed = []
    for i, row in enumerate(scores):
        ids = torch.tensor([[*prompt, *tokens[:i]]])
        scored = row[None]
        for processor in processors:
            scored = processor(ids, scored)
        processed.append(scored)
    return torch.cat(processed)
