"""The target: the model whose distribution is preserved. Not a plugin kind; tests use a table."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from draftwood.core.errors import UnsupportedTarget
from draftwood.core.kernels.protocol import Kernels
from draftwood.core.tree import TokenTree
from draftwood.core.values import Forwarded

if TYPE_CHECKING:
    from draftwood.core.interfaces.controller import CostProbe
    from draftwood.core.kernels.graphs import Capturing


class TargetSession(ABC):
    """One request's committed context in the target: its K/V, in place."""

    @property
    @abstractmethod
    def length(self) -> int:
        """Tokens whose K/V is held: everything committed but the anchor."""

    @abstractmethod
    def prefill(self, ids: Sequence[int]) -> Forwarded:
        """Run the prompt (at least one token), keep its K/V. Only on a fresh session."""

    @abstractmethod
    def commit(self, path: Sequence[int]) -> None:
        """Keep the K/V of these nodes of the last forward, in order, and drop the others'.

        path: node indices, the anchor (0) first. Its cost does not grow with the context.
        """

    @abstractmethod
    def fork(self) -> "TargetSession":
        """An independent copy of the committed state."""


class Target(ABC):
    """A causal language model that scores trees.

    vocab_size: width V of its logits. max_context: most tokens it can hold, None if unbounded.
    eos_token_ids: tokens that end a text by default. device: where its tensors are.
    """

    vocab_size: int
    max_context: int | None
    eos_token_ids: frozenset[int]
    device: torch.device

    @abstractmethod
    def open(self, taps: Sequence[int] = (), kernels: Kernels | None = None) -> TargetSession:
        """A session for one request. taps: 0-based layers whose output is returned as features;
        "after layer l" is hidden_states[l + 1], for the last layer after the final norm."""

    @abstractmethod
    def forward(self, work: Sequence[tuple[TargetSession, TokenTree]]) -> Sequence[Forwarded]:
        """Logits after every node of each tree, its tokens attending to the session's context and
        their own ancestors. Nothing is committed; a second forward replaces the first.

        Version 1 raises NotImplementedError for more than one request.
        """

    @abstractmethod
    def costs(self, clock: Callable[[], float], kernels: Kernels | None = None) -> "CostProbe":
        """How to price forwards of this target on this machine, of sessions with `kernels`."""

    def traced_flops(self) -> Callable[[int, int], float]:
        """(tokens, context) -> operations of a forward, counted by tracing it. Raises
        UnsupportedTarget for a target that cannot be traced; `costs` has a closed form."""
        raise UnsupportedTarget(f"{type(self).__name__} cannot be traced")

    def capturing(self) -> "Capturing | None":
        """How passes that run beside its forwards are captured, for the caller to keep; None where
        nothing is captured."""
        return None

    def vocabulary(self) -> Mapping[str, int] | None:
        """Ids by token, for drafters with a tokenizer of their own; None if it is not known."""
        return None

    def embedding_weight(self) -> Tensor:
        """(V, H) raw input embedding rows, for drafters that share them."""
        raise NotImplementedError(f"{type(self).__name__} has no embedding to share")

    def head_weight(self) -> Tensor:
        """(V, H) output head, for drafters that share it."""
        raise NotImplementedError(f"{type(self).__name__} has no output head to share")
