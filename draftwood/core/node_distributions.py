"""The target's distribution at each node of a tree, computed when a verifier asks for it."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from draftwood.core.distributions import sampling_probs
from draftwood.core.errors import NonFiniteLogits
from draftwood.core.interfaces import NodeDistributions
from draftwood.core.options import Sampling
from draftwood.core.tree import TokenTree

Processor = Callable[[Tensor, Tensor], Tensor]
"""(ids (1, n) int64, scores (1, V)) -> scores (1, V): Hugging Face's LogitsProcessor."""


class TargetDistributions(NodeDistributions):
    """p from logits: each node's own path through the processors, then temperature and filters.

    A distribution is one row's work and most nodes are never visited, so rows are computed on
    demand. Only greedy decoding without processors takes all rows at once: one reduction and one
    small copy."""

    def __init__(
        self,
        logits: Tensor,
        tree: TokenTree,
        history: Sequence[int],
        sampling: Sampling,
        processors: Sequence[Processor],
        round_index: int,
    ) -> None:
        self.size = len(tree)
        self.greedy = sampling.greedy
        self.round = round_index
        self._logits, self._tree = logits, tree
        # The history goes on growing after this round; its length now is what positions mean.
        self._history, self._committed = history, len(history)
        self.sampling, self._processors = sampling, processors
        self._distributions: dict[int, Tensor] = {}
        self._argmax: list[int] | None = None
        self._largest: list[float] = []

    def position(self, node: int) -> int:
        return self._committed + (self._tree.depth_list[node] if node else 0)

    def probs(self, node: int) -> Tensor:
        if node not in self._distributions:
            self._distributions[node] = sampling_probs(self._scores(node), self.sampling)
        return self._distributions[node]

    def argmax(self, node: int) -> int:
        if self._processors:
            return int(self._scores(node).argmax())
        if self._argmax is None:
            largest = self._logits.max(-1)
            self._argmax, self._largest = largest.indices.tolist(), largest.values.tolist()
        if not abs(self._largest[node]) < float("inf"):  # NaN compares false too
            raise NonFiniteLogits(node, self.position(node))
        return self._argmax[node]

    def scores(self) -> Tensor:
        """As the interface says. With processors every node's path is gone through on the host,
        also of nodes that no walk will reach."""
        if not self._processors:
            return self._logits
        rows = []
        for node in range(self.size):
            row = self._processed(node)
            # What was no distribution before the processors must not look like one after them.
            sound = self._logits[node].max().isfinite() & row.max().isfinite()
            rows.append(torch.where(sound, row, torch.nan))
        return torch.stack(rows)

    def log_probability(self, node: int, token: int) -> float:
        """log p of `token` after `node` under the model itself: no processor, temperature 1."""
        row = self._logits[node]
        row = row.float() if row.dtype in (torch.float16, torch.bfloat16) else row
        return float(row[token] - row.logsumexp(-1))

    def _scores(self, node: int) -> Tensor:
        row = self._logits[node]
        if not torch.isfinite(row.max()):
            raise NonFiniteLogits(node, self.position(node))
        if not self._processors:
            return row
        scores = self._processed(node)
        if not torch.isfinite(scores.max()):
            raise NonFiniteLogits(node, self.position(node))
        return scores

    def _processed(self, node: int) -> Tensor:
        row = self._logits[node]
        path = [self._tree.token_list[i] for i in self._tree.path(node)[1:]]
        ids = torch.tensor([[*self._history[: self._committed], *path]], device=row.device)
        scores = row[None].float() if row.dtype in (torch.float16, torch.bfloat16) else row[None]
        for processor in self._processors:
            scores = processor(ids, scores)
        return scores[0]
