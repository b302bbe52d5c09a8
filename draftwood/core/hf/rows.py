"""The rows of one forward: nodes behind a context, and which of them each attends to."""

import torch
from attrs import frozen
from torch import Tensor

from draftwood.core.hf.masks import chain
from draftwood.core.kernels.protocol import Kernels
from draftwood.core.kernels.tree_mask import TreeMask, ancestor_words
from draftwood.core.tree import TokenTree


@frozen(eq=False)
class Rows:
    """The last n of m nodes whose K/V lies behind the context; the others have run before.

    Without `tree` and `seen` the nodes are a chain.

    Attributes:
        tokens: (n,) int64.
        depths: (m,) int64, of all nodes.
        tree: the tree, if the rows are all of its nodes.
        seen: (n, m) bool on the host, for each row its ancestors and itself, if they are not.
    """

    tokens: Tensor
    depths: Tensor
    tree: TokenTree | None = None
    seen: Tensor | None = None

    @classmethod
    def of(cls, tree: TokenTree) -> "Rows":
        return cls(tree.tokens, tree.depths, tree if len(tree) > 1 else None)

    @classmethod
    def chain(cls, tokens: Tensor) -> "Rows":
        return cls(tokens, torch.arange(len(tokens)))

    @property
    def own_depths(self) -> Tensor:
        """(n,) depths of the rows alone."""
        return self.depths[len(self.depths) - len(self.tokens) :]

    @property
    def visible(self) -> Tensor | None:
        """(n, m) bool on the host; None for a single node, which attends to everything."""
        if self.tree is not None:
            return self.tree.ancestors()
        if self.seen is not None:
            return self.seen
        return None if len(self.tokens) == 1 else chain(len(self.tokens))[0]

    def mask(self, kernels: Kernels, length: int, device: torch.device) -> TreeMask:
        """What the rows attend to, for kernels, behind `length` committed rows, on `device`."""
        context = torch.full((), length, dtype=torch.int32, device=device)
        if self.tree is not None:
            parents = self.tree.parents.to(device)
            words = kernels.ancestors(parents)
        elif self.seen is not None:
            words = torch.from_numpy(ancestor_words(self.seen)).to(device)
        else:
            return TreeMask(context, length)
        first = len(self.depths) - len(self.tokens)
        return TreeMask(context, length, first, self.depths.to(device), words)
