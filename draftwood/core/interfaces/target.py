"""The target: the model whose distribution is preserved. Not a plugin kind; tests use a table."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from draftwood.core.errors import UnsupportedTarget
from draftwood.core.interfaces.controller import CostProbe
from draftwood.core.kernels.capture import Capturing
from draftwood.core.kernels.protocol import Kernels
from draftwood.core.tree import TokenTree
from draftwood.core.values import Forwarded


class TargetSession(ABC):
    """One request's committed context in the target: its K/V, in place."""

    @property
    @abstractmethod
    def length(self) -> int:
        """Tokens whose K/V is held: all committed tokens but the anchor."""

    @abstractmethod
    def prefill(self, ids: Sequence[int], inputs: Mapping[str, Any] | None = None) -> Forwarded:
        """Run the prompt and keep its K/V. Only on a new session.

        Args:
            ids: Token ids, at least one.
            inputs: More inputs by the target's own names (images); given only where a request has
                some.
        """

    @abstractmethod
    def commit(self, path: Sequence[int]) -> None:
        """Keep the K/V of some nodes of the last forward pass, in order, and drop the others'.

        The cost does not grow with the context.

        Args:
            path: Node indices, the anchor (0) first.
        """

    @abstractmethod
    def fork(self) -> "TargetSession":
        """An independent copy of the committed state."""


class Target(ABC):
    """A causal language model that scores trees.

    Attributes:
        generation_defaults: The checkpoint's own generation settings, by the names of
            GenerationOptions.
        vocab_size: Width V of its logits.
        max_context: Most tokens that it can hold; None if unbounded.
        eos_token_ids: Tokens that end a text by default.
        device: Where its logits are.
    """

    generation_defaults: Mapping[str, Any] = {}
    vocab_size: int
    max_context: int | None
    eos_token_ids: frozenset[int]
    device: torch.device

    @abstractmethod
    def open(self, taps: Sequence[int] = (), kernels: Kernels | None = None) -> TargetSession:
        """A session for one request.

        Args:
            taps: 0-based layers whose outputs are returned as features. The output of layer l is
                hidden_states[l + 1]; of the last layer it is taken after the final norm.
            kernels: Attention and compaction kernels; None for the model's own.
        """

    @abstractmethod
    def forward(self, work: Sequence[tuple[TargetSession, TokenTree]]) -> Sequence[Forwarded]:
        """Logits after every node of each tree.

        A node attends to the session's context and to its own ancestors. Nothing is committed; a
        second forward pass replaces the first.

        Raises:
            NotImplementedError: More than one request, in version 1.
        """

    @abstractmethod
    def costs(self, clock: Callable[[], float], kernels: Kernels | None = None) -> CostProbe:
        """Costs of this target's forward passes on this machine, in sessions with `kernels`."""

    def traced_flops(self) -> Callable[[int, int], float]:
        """(tokens, context) -> operations of a forward pass, counted by tracing it.

        Raises:
            UnsupportedTarget: The target cannot be traced; `costs` has a closed form.
        """
        raise UnsupportedTarget(f"{type(self).__name__} cannot be traced")

    def capturing(self) -> Capturing | None:
        """How forward passes beside the target's are captured; None where nothing is captured."""
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
