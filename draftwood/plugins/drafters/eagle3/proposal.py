"""EAGLE-3's proposal: each node has its own distribution, and each level costs a pass over kept
nodes."""

import torch
from attrs import evolve, frozen
from torch import Tensor

from draftwood.core.distributions import sampling_probs, stable_topk
from draftwood.core.options import Sampling
from draftwood.core.proposals import Children, Frontier, Proposal, Vocabulary
from draftwood.plugins.drafters.common.cache import ContextCache
from draftwood.plugins.drafters.eagle3.model import Eagle3Model


@frozen(eq=False)
class Parts:
    """What a drafter runs with: its network, the (V, d) embedding rows and, unless the checkpoint
    has its own, the (V, d) output head, and where its vocabulary lies in the target's."""

    model: Eagle3Model
    embedding: Tensor
    head: Tensor | None
    vocabulary: Vocabulary


@frozen(eq=False)
class Nodes:
    """A frontier's state. states: (F, d), what `Eagle3Model.run` returned at each node.
    seen: (F, m) bool, which rows behind the committed ones are a node's path, itself included;
    rows that were written later are not."""

    states: Tensor
    seen: Tensor


@frozen(eq=False)
class Eagle3Proposal(Proposal):
    """Distributions along paths from the anchor.

    committed: rows of the cache that every node sees, the anchor's the last. Each `advance` writes
    its nodes' K/V behind all others, so two branches never disturb each other; the session rolls
    them back when the next round begins, and the proposal is then at its end. anchor: (1, d), the
    anchor's state. position: the anchor's.
    """

    parts: Parts
    cache: ContextCache
    committed: int
    anchor: Tensor
    position: int
    max_depth: int
    sampling: Sampling
    pass_per_level = True

    @property
    def device(self) -> torch.device:
        return self.anchor.device

    def tempered(self, temperature: float) -> "Eagle3Proposal":
        return evolve(self, sampling=evolve(self.sampling, temperature=temperature))

    def root(self) -> Frontier:
        nothing = torch.zeros((1, 0), dtype=torch.bool, device=self.device)
        return Frontier(0, 1, Nodes(self.anchor, nothing))

    def expand(self, at: Frontier, k: int) -> Children:
        tokens, probs = stable_topk(self._distribution(at), k, self.parts.vocabulary.ids)
        return Children(tokens, probs.double().log())

    def probs(self, at: Frontier) -> Tensor:
        return self.parts.vocabulary.scatter(self._distribution(at))

    def _distribution(self, at: Frontier) -> Tensor:
        """(F, V_draft)."""
        with torch.inference_mode():
            logits = self.parts.model.logits(at.state.states, self.parts.head)
            return sampling_probs(logits, self.sampling)

    def advance(self, at: Frontier, rows: Tensor, tokens: Tensor) -> Frontier:
        """One pass over the kept children, each seeing the committed rows and its own path."""
        with torch.inference_mode():
            rows, tokens = rows.to(self.device), tokens.to(self.device)
            count, written = rows.shape[0], self.cache.length - self.committed
            path = torch.zeros((count, written + count), dtype=torch.bool, device=self.device)
            path[:, : at.state.seen.shape[1]] = at.state.seen[rows]
            path[:, written:].fill_diagonal_(fill_value=True)
            context = path.new_ones((count, self.committed))
            positions = torch.full((count,), self.position + at.depth + 1, device=self.device)
            states = self.parts.model.run(
                self.parts.embedding[tokens],
                at.state.states[rows],
                positions,
                self.cache,
                torch.cat((context, path), 1),
            )
            return Frontier(at.depth + 1, count, Nodes(states, path))
