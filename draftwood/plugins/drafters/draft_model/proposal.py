"""A language model's proposal: each node has its own distribution, and each level costs a pass."""

import torch
from attrs import evolve, frozen
from torch import Tensor

from draftwood.core.distributions import sampling_probs, stable_topk
from draftwood.core.hf import HFTarget
from draftwood.core.hf.session import HFSession
from draftwood.core.options import Sampling
from draftwood.core.proposals import Children, Frontier, Proposal, Vocabulary


@frozen(eq=False)
class Nodes:
    """A frontier's state. logits: (F, V). seen: (F, m) bool on the host, which rows behind the
    committed ones each node sees: what all share, and its own path, itself included."""

    logits: Tensor
    seen: Tensor


@frozen(eq=False)
class ModelProposal(Proposal):
    """Distributions along paths from the anchor.

    shared: rows behind the committed ones that every node sees, the anchor's the last. Nodes are
    scored behind them, each once; the session drops them when the next round begins, and the
    proposal is then at its end. logits: (1, V) after the anchor.
    """

    scorer: HFTarget
    session: HFSession
    shared: int
    logits: Tensor
    max_depth: int
    sampling: Sampling
    vocabulary: Vocabulary
    pass_per_level = True

    @property
    def device(self) -> torch.device:
        return self.logits.device

    def tempered(self, temperature: float) -> "ModelProposal":
        return evolve(self, sampling=evolve(self.sampling, temperature=temperature))

    def root(self) -> Frontier:
        return Frontier(0, 1, Nodes(self.logits, torch.ones((1, self.shared), dtype=torch.bool)))

    def expand(self, at: Frontier, k: int) -> Children:
        tokens, probs = stable_topk(self._distribution(at), k)
        return Children(tokens, probs.double().log())

    def probs(self, at: Frontier) -> Tensor:
        return self.vocabulary.scatter(self._distribution(at))

    def _distribution(self, at: Frontier) -> Tensor:
        with torch.inference_mode():
            # A model may have more rows of padding than the target has tokens.
            return sampling_probs(at.state.logits[:, : self.vocabulary.size], self.sampling)

    def advance(self, at: Frontier, rows: Tensor, tokens: Tensor) -> Frontier:
        """One pass over the kept children, each seeing the text and its own path."""
        rows, tokens = rows.cpu(), tokens.cpu()
        count, before = rows.shape[0], self.session.pending
        seen = torch.zeros((count, before + count), dtype=torch.bool)
        seen[:, : at.state.seen.shape[1]] = at.state.seen[rows]
        seen[:, before:].fill_diagonal_(fill_value=True)
        depths = torch.full((count,), self.shared + at.depth)
        logits = self.session.deepen(tokens, depths, seen)
        return Frontier(at.depth + 1, count, Nodes(logits, seen))
