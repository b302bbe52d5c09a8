"""The target's distribution at each node of a tree, computed when a verifier reads it."""

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


TopLogprobs = tuple[tuple[int, float], ...]
"""(token, log-probability) of the most likely tokens at one place, best first."""


class TargetDistributions(NodeDistributions):
    """p from logits: each node's own path through the processors, then temperature and filters.

    Most nodes are never visited, so a row is computed when it is read. Only greedy decoding without
    processors reads all rows at once: one reduction and one small copy.

    Args:
        logits: (N+1, V) of the target, row i after node i.
        tree: The verified tree.
        history: Prompt and committed tokens, the anchor last. It may grow after the round.
        sampling: Temperature and filters.
        processors: Applied to each node's own path.
        round_index: 0-based index of the round.
        stop_reason: Why the text ends after these tokens of a node's path, the anchor's left out,
            or None. Called once for a node.

    Attributes:
        caller_error: What a processor or a stop rule of the caller raised, if one did.
    """

    def __init__(
        self,
        logits: Tensor,
        tree: TokenTree,
        history: Sequence[int],
        sampling: Sampling,
        processors: Sequence[Processor],
        round_index: int,
        stop_reason: Callable[[Sequence[int]], str | None] | None = None,
    ) -> None:
        self.size = len(tree)
        self.greedy = sampling.greedy
        self.round = round_index
        self.sampling = sampling
        self.caller_error: Exception | None = None
        self._logits, self._tree, self._processors = logits, tree, processors
        # Positions count from the length that the history has now.
        self._history, self._committed = history, len(history)
        self._find_reason = stop_reason
        self._reasons: dict[int, str | None] = {0: None}
        self._probs: dict[int, Tensor] = {}
        self._argmax: list[int] | None = None
        self._largest: list[float] = []

    def position(self, node: int) -> int:
        return self._committed + (self._tree.depth_list[node] if node else 0)

    def ends(self, node: int) -> bool:
        return self.stop_reason(node) is not None

    def stop_reason(self, node: int) -> str | None:
        """Why the text ends with this node's token, or None."""
        if self._find_reason is None:
            return None
        if node not in self._reasons:
            try:
                self._reasons[node] = self._find_reason(self._path(node))
            except Exception as error:
                self.caller_error = error
                raise
        return self._reasons[node]

    def probs(self, node: int) -> Tensor:
        if node not in self._probs:
            self._probs[node] = sampling_probs(self._scores(node), self.sampling)
        return self._probs[node]

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
        """(N+1, V) of all nodes; processors run on the host for every node up to a stop."""
        if not self._processors:
            return self._logits
        rows: list[Tensor] = []
        for node in range(self.size):
            if self.stopped(node) is not None:
                rows.append(_single_precision(self._logits[node]))  # never drawn from
                continue
            row = self._processed(node)
            # A row that was unusable before the processors must not look usable after them.
            usable = self._logits[node].max().isfinite() & row.max().isfinite()
            rows.append(torch.where(usable, row, torch.nan))
        return torch.stack(rows)

    def stopped(self, node: int) -> int | None:
        """The first node on the path to `node`, itself included, at which the text ends."""
        return next((each for each in self._tree.path(node) if self.ends(each)), None)

    def ids(self, node: int) -> list[int]:
        """Prompt and committed tokens, and those on the path to `node`."""
        return [*self._history[: self._committed], *self._path(node)]

    def log_probability(self, node: int, token: int) -> float:
        """log p of `token` after `node` under the model itself: no processor, temperature 1."""
        row = _single_precision(self._logits[node])
        return float(row[token] - row.logsumexp(-1))

    def top_logprobs(self, node: int, count: int) -> TopLogprobs:
        """The `count` most likely tokens after `node` under the model itself, best first."""
        row = _single_precision(self._logits[node])
        values, tokens = row.topk(min(count, row.shape[-1]))
        logprobs = (values - row.logsumexp(-1)).tolist()
        return tuple(zip(tokens.tolist(), logprobs, strict=True))

    def _scores(self, node: int) -> Tensor:
        row = self._finite(self._logits[node], node)
        return self._finite(self._processed(node), node) if self._processors else row

    def _finite(self, row: Tensor, node: int) -> Tensor:
        if not torch.isfinite(row.max()):
            raise NonFiniteLogits(node, self.position(node))
        return row

    def _path(self, node: int) -> list[int]:
        """The tokens on the path to `node`, the anchor's left out."""
        return [self._tree.token_list[i] for i in self._tree.path(node)[1:]]

    def _processed(self, node: int) -> Tensor:
        # A copy: processors may write to what they get. The target's logits are inference tensors,
        # which can be written to in inference mode only.
        try:
            with torch.inference_mode():
                scores = _single_precision(self._logits[node])[None].clone()
                ids = torch.tensor([self.ids(node)], device=scores.device)
                for processor in self._processors:
                    scores = processor(ids, scores)
        except Exception as error:
            self.caller_error = error
            raise
        return scores[0]


def _single_precision(row: Tensor) -> Tensor:
    """`row`, in float32 if it is in a half precision."""
    return row.float() if row.dtype in (torch.float16, torch.bfloat16) else row
