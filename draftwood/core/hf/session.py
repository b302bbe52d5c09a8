"""One request's context in a Hugging Face target: prefill, forwards of trees, commits."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from draftwood.core.errors import RequestError, TreeError
from draftwood.core.hf.cache import TreeCache
from draftwood.core.hf.graphs import Graphs
from draftwood.core.hf.rows import Rows
from draftwood.core.hf.scorer import Scored, TreeScorer
from draftwood.core.hf.taps import Taps, side_by_side
from draftwood.core.interfaces.target import TargetSession
from draftwood.core.kernels.protocol import Kernels
from draftwood.core.tree import TokenTree
from draftwood.core.values import Forwarded

PREFILL_CHUNK = 1024
"""Largest number of prompt tokens in one forward."""


class HFSession(TargetSession):
    """The K/V of one request, and the layers that it taps.

    Args:
        graphs: replays captured forwards of fixed sizes, None where nothing is captured.
        prefill_chunk: largest number of prompt tokens in one forward.
    """

    def __init__(
        self,
        scorer: TreeScorer,
        taps: Taps,
        cache: TreeCache,
        kernels: Kernels | None = None,
        graphs: Graphs | None = None,
        prefill_chunk: int = PREFILL_CHUNK,
    ) -> None:
        self.scorer, self.taps, self.cache, self.kernels = scorer, taps, cache, kernels
        self._graphs, self._prefill_chunk = graphs, prefill_chunk
        # Depths of the nodes whose rows lie behind the committed ones: a commit may keep them.
        self._pending_depths = torch.empty(0, dtype=torch.int64)

    @property
    def length(self) -> int:
        return self.cache.length

    @property
    def pending(self) -> int:
        """Number of scored nodes that a commit may keep."""
        return len(self._pending_depths)

    def prefill(self, ids: Sequence[int], inputs: Mapping[str, Any] | None = None) -> Forwarded:
        """Run the prompt in chunks; only the last token's logits are computed.

        Args:
            ids: Token ids of the prompt.
            inputs: More inputs of the model's forward (images). The prompt then runs at once, with
                the model's own mask.
        """
        if self.length:
            raise RequestError("a prompt can only be prefilled into a fresh session")
        if not ids:
            raise RequestError("the prompt is empty; it needs at least one token")
        self.scorer.check_room(len(ids) - 1)
        if inputs:
            return self._prefill_at_once(torch.tensor(ids), inputs)
        features = []
        with torch.inference_mode():
            self.cache.reserve(len(ids))
            for chunk in torch.tensor(ids).split(self._prefill_chunk):
                logits, parts = self._score(Rows.chain(chunk), last=1)
                self.cache.advance(len(chunk))
                if parts:
                    features.append(side_by_side(parts, self.scorer.device))
            return Forwarded(logits, torch.cat(features) if features else None)

    def _prefill_at_once(self, ids: Tensor, inputs: Mapping[str, Any]) -> Forwarded:
        with torch.inference_mode():
            self.cache.reserve(len(ids))
            with self.taps.recording() as parts, self.cache.views():
                positions = torch.arange(len(ids))
                logits = self.scorer.call(ids, positions, self.cache, None, 1, inputs)
            self.scorer.forbid_padding(logits)
            self.cache.advance(len(ids))
            return Forwarded(logits, side_by_side(parts, self.scorer.device) if parts else None)

    def forward(self, tree: TokenTree) -> Forwarded:
        """Score a whole tree; replaces the nodes of the last forward."""
        self.drop()  # If this forward fails, the rows of the last one are overwritten.
        with torch.inference_mode():
            logits, parts = self._replay(tree) or self._score(Rows.of(tree))
            self._pending_depths = tree.depths
            features = side_by_side(parts, self.scorer.device) if parts else None
            return Forwarded(logits, features)

    def deepen(self, tokens: Tensor, depths: Tensor, visible: Tensor) -> Tensor:
        """Score more nodes behind those scored since the last commit.

        For a model that drafts: a tree is scored level by level, each node once. `forward` and
        `commit` start anew.

        Args:
            tokens: (n,) int64 on the host.
            depths: (n,) int64 on the host.
            visible: (n, m + n) bool on the host; which of the m nodes so far and of these n
                each one attends to, itself included.

        Returns:
            (n, V) logits.
        """
        with torch.inference_mode():
            self.cache.keep(self.pending)
            all_depths = torch.cat([self._pending_depths, depths])
            logits, _ = self._score(Rows(tokens, all_depths, seen=visible))
            self._pending_depths = all_depths
            return logits

    def commit(self, path: Sequence[int]) -> None:
        if not path or path[0] != 0 or path[-1] >= self.pending:
            raise TreeError(
                f"cannot commit nodes {list(path)} of a forward over {self.pending}: a path "
                "starts at the anchor (0) and stays inside the last forward"
            )
        with torch.inference_mode():
            self.cache.commit(path, self.kernels)
        self.drop()

    def drop(self, keep: int = 0) -> None:
        """Drop the rows of scored nodes, except the first `keep`."""
        self._pending_depths = self._pending_depths[:keep]
        self.cache.keep(self.pending)

    def fork(self) -> "HFSession":
        with torch.inference_mode():
            cache = self.cache.fork()
        return HFSession(
            self.scorer, self.taps, cache, self.kernels, self._graphs, self._prefill_chunk
        )

    def _score(self, rows: Rows, last: int = 0) -> Scored:
        return self.scorer.score(self.cache, self.taps, rows, self.kernels, last)

    def _replay(self, tree: TokenTree) -> Scored | None:
        """The captured forward of a tree, None where none is captured."""
        if self._graphs is None or self.kernels is None:
            return None
        self.scorer.check_depths(self.length, tree.depths)
        scored = self._graphs.score(self.cache, self.taps, self.kernels, tree)
        if scored is not None:
            self.scorer.forbid_padding(scored[0])
        return scored
