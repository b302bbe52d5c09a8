"""A language model's proposal: each node has its own distribution, each level a forward pass."""

import torch
from attrs import frozen
from torch import Tensor

from draftwood.core.hf.session import HFSession
from draftwood.core.options import Sampling
from draftwood.core.proposals import Frontier, Vocabulary
from draftwood.plugins.drafters.common.autoregressive import AutoregressiveProposal, children_mask


@frozen(eq=False)
class Nodes:
    """State of a frontier.

    Attributes:
        logits: (F, V) after each node.
        visible: (F, m) bool on the host, which rows behind the committed ones each node attends to,
            its own included.
    """

    logits: Tensor
    visible: Tensor


@frozen(eq=False)
class ModelProposal(AutoregressiveProposal):
    """Distributions along paths from the anchor.

    Nodes are scored once, behind the rows that all share. The session drops them in the next round,
    after which the proposal is invalid.

    Attributes:
        shared: Rows behind the committed ones that every node attends to, the anchor's the last.
        logits: (1, V) after the anchor.
    """

    session: HFSession
    shared: int
    logits: Tensor
    max_depth: int
    sampling: Sampling
    vocabulary: Vocabulary

    @property
    def device(self) -> torch.device:
        return self.logits.device

    def root(self) -> Frontier:
        return Frontier(0, 1, Nodes(self.logits, torch.ones((1, self.shared), dtype=torch.bool)))

    def logits_at(self, at: Frontier) -> Tensor:
        # A model may have padding rows beyond the target's vocabulary.
        return at.state.logits[:, : self.vocabulary.size]

    def advance(self, at: Frontier, rows: Tensor, tokens: Tensor) -> Frontier:
        rows, tokens = rows.cpu(), tokens.cpu()
        count = rows.shape[0]
        visible = children_mask(at.state.visible, rows, self.session.pending)
        depths = torch.full((count,), self.shared + at.depth)
        logits = self.session.deepen(tokens, depths, visible)
        return Frontier(at.depth + 1, count, Nodes(logits, visible))
