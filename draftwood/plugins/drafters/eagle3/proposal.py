"""EAGLE-3's proposal: each node has its own distribution, and each level costs a forward pass."""

import torch
from attrs import frozen
from torch import Tensor

from draftwood.core.options import Sampling
from draftwood.core.proposals import Frontier, Vocabulary
from draftwood.plugins.drafters.common.autoregressive import AutoregressiveProposal, children_mask
from draftwood.plugins.drafters.common.cache import ContextCache
from draftwood.plugins.drafters.common.model import Shared
from draftwood.plugins.drafters.eagle3.model import Eagle3Model


@frozen(eq=False)
class Nodes:
    """State of a frontier.

    Attributes:
        states: (F, d), the results of `Eagle3Model.run`.
        visible: (F, m) bool, which rows behind the committed ones are on a node's path, its own
            included.
    """

    states: Tensor
    visible: Tensor


@frozen(eq=False)
class Eagle3Proposal(AutoregressiveProposal):
    """Distributions along paths from the anchor.

    Each `advance` writes its nodes' K/V behind all others, so branches do not disturb each other.
    The session rolls them back in the next round, after which the proposal is invalid.

    Attributes:
        committed: Rows of the cache that every node attends to, the anchor's the last.
        anchor: (1, d), the state of the anchor's row.
        position: The anchor's.
    """

    model: Eagle3Model
    shared: Shared
    cache: ContextCache
    committed: int
    anchor: Tensor
    position: int
    max_depth: int
    sampling: Sampling

    @property
    def device(self) -> torch.device:
        return self.anchor.device

    @property
    def vocabulary(self) -> Vocabulary:  # type: ignore[override]
        return self.shared.vocabulary

    def root(self) -> Frontier:
        none = torch.zeros((1, 0), dtype=torch.bool, device=self.device)
        return Frontier(0, 1, Nodes(self.anchor, none))

    def logits_at(self, at: Frontier) -> Tensor:
        return self.model.logits(at.state.states, self.shared.head)

    def advance(self, at: Frontier, rows: Tensor, tokens: Tensor) -> Frontier:
        with torch.inference_mode():
            rows, tokens = rows.to(self.device), tokens.to(self.device)
            count = rows.shape[0]
            visible = children_mask(at.state.visible, rows, self.cache.length - self.committed)
            positions = torch.full((count,), self.position + at.depth + 1, device=self.device)
            states = self.model.run(
                self.shared.embedding[tokens],
                at.state.states[rows],
                positions,
                self.cache,
                torch.cat((visible.new_ones((count, self.committed)), visible), 1),
            )
            return Frontier(at.depth + 1, count, Nodes(states, visible))
