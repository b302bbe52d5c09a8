"""A draft tree: the candidates that the target verifies in one forward pass."""

from typing import Any

import numpy as np
import torch
from attrs import field, frozen
from torch import Tensor

from draftwood.core.draws import Draws
from draftwood.core.errors import TreeError


@frozen(eq=False)
class TokenTree:
    """Node 0 (the anchor) and N draft nodes of one request, in growth order.

    tokens, parents, depths: (N+1,) int64; parents[0] is -1 and parents[i] < i, so every prefix is
    a valid tree. log_rho: (N+1,) float64, log path score, log_rho[0] = 0. They lie where the tree
    was grown; their lists are copied to the host when they are first asked for.
    draws: how the nodes were chosen. q: for drawn trees (N, V), row i-1 the distribution that node
    i's token was drawn from, in the dtype it was drawn in; None for deterministic trees."""

    tokens: Tensor
    parents: Tensor
    depths: Tensor
    log_rho: Tensor
    draws: Draws = Draws.DETERMINISTIC
    q: Tensor | None = None
    # Plain lists of the four columns: a host walk over tensors costs microseconds an element.
    _lists: dict[str, list[Any]] = field(factory=dict, init=False, repr=False)

    @classmethod
    def root(cls, token: int) -> "TokenTree":
        """The tree of the anchor alone: a plain autoregressive step."""
        return cls.of([token], [-1], [0], [0.0])

    @classmethod
    def of(
        cls,
        tokens: list[int],
        parents: list[int],
        depths: list[int],
        log_rho: list[float],
        draws: Draws = Draws.DETERMINISTIC,
        q: Tensor | None = None,
    ) -> "TokenTree":
        """A tree from host lists, node 0 first."""
        # By way of numpy: torch.tensor looks at each element of a list by itself.
        columns = torch.from_numpy(np.array([tokens, parents, depths], dtype=np.int64))
        scores = torch.from_numpy(np.array(log_rho, dtype=np.float64))
        tree = cls(columns[0], columns[1], columns[2], scores, draws, q)
        tree._lists.update(tokens=tokens, parents=parents, depths=depths, log_rho=log_rho)
        return tree

    def __len__(self) -> int:
        """N + 1, the anchor included."""
        return self.tokens.shape[0]

    @property
    def nodes(self) -> int:
        """N, the draft nodes: what a budget counts."""
        return len(self) - 1

    def _list(self, name: str) -> list[Any]:
        if name not in self._lists:
            self._lists[name] = getattr(self, name).tolist()
        return self._lists[name]

    def remember(self, **lists: list[Any]) -> None:
        """Columns by name that were copied to the host along with something else."""
        self._lists.update(lists)

    @property
    def token_list(self) -> list[int]:
        return self._list("tokens")

    @property
    def parent_list(self) -> list[int]:
        return self._list("parents")

    @property
    def depth_list(self) -> list[int]:
        return self._list("depths")

    @property
    def log_rho_list(self) -> list[float]:
        return self._list("log_rho")

    @property
    def children(self) -> list[list[int]]:
        """For each node its children, in growth order (for drawn trees: in draw order)."""
        if "children" not in self._lists:
            children: list[list[int]] = [[] for _ in range(len(self))]
            for node, parent in enumerate(self.parent_list[1:], 1):
                children[parent].append(node)
            self._lists["children"] = children
        return self._lists["children"]

    @property
    def is_chain(self) -> bool:
        """Whether node i hangs from node i-1: then a causal mask is the tree's mask."""
        return self.parent_list == list(range(-1, len(self) - 1))

    def expected_tokens(self) -> Tensor:
        """A^(0..N): (N+1,) float64, expected tokens committed if the tree is cut to n nodes."""
        return self.log_rho.exp().cumsum(0)

    def ancestors(self) -> Tensor:
        """(N+1, N+1) bool on the host; [i, j] is whether j is i or one of its ancestors."""
        mask = np.zeros((len(self), len(self)), dtype=bool)
        for node, parent in enumerate(self.parent_list):
            if parent >= 0:
                mask[node] = mask[parent]
            mask[node, node] = True
        return torch.from_numpy(mask)

    def path(self, node: int) -> list[int]:
        """Node indices from the anchor to `node`, both included."""
        path = [node]
        while (node := self.parent_list[node]) >= 0:
            path.append(node)
        return path[::-1]

    def cut(self, nodes: int) -> "TokenTree":
        """The first `nodes` draft nodes. A drawn tree raises TreeError: keeping nodes by their
        scores would change the distribution of what is kept (BASTION's budgets are for scored
        trees)."""
        if nodes == self.nodes:
            return self
        if self.draws is not Draws.DETERMINISTIC:
            raise TreeError(
                f"a tree of {self.draws} draws cannot be cut to {nodes} of its {self.nodes} "
                "nodes: what is kept would no longer follow the distribution it was drawn "
                "from; limit it "
                "before drawing (BudgetController.before_draft, should_expand)"
            )
        n = nodes + 1
        tree = TokenTree(self.tokens[:n], self.parents[:n], self.depths[:n], self.log_rho[:n])
        known = (
            (name, self._lists.get(name)) for name in ("tokens", "parents", "depths", "log_rho")
        )
        tree._lists.update((name, values[:n]) for name, values in known if values is not None)
        return tree

    def validate(self) -> "TokenTree":
        """Raise TreeError if an invariant is broken; returns itself. For tests and authors."""
        size = len(self)
        shapes = {tuple(t.shape) for t in (self.tokens, self.parents, self.depths, self.log_rho)}
        if shapes != {(size,)}:
            raise TreeError(f"columns differ in shape: {sorted(shapes)}")
        if self.parent_list[0] != -1 or self.depth_list[0] != 0 or self.log_rho[0] != 0:
            raise TreeError("node 0 is not a root: parent -1, depth 0, log_rho 0 expected")
        for node in range(1, size):
            parent = self.parent_list[node]
            if not 0 <= parent < node:
                raise TreeError(f"node {node} has parent {parent}; parents come before children")
            if self.depth_list[node] != self.depth_list[parent] + 1:
                raise TreeError(f"node {node} is not one level below its parent {parent}")
        if self.draws in (Draws.DETERMINISTIC, Draws.WITHOUT_REPLACEMENT):
            for parent, nodes in enumerate(self.children):
                tokens = [self.token_list[node] for node in nodes]
                if len(set(tokens)) != len(tokens):
                    raise TreeError(f"node {parent} has two children with one token: {tokens}")
        if (self.q is None) != (self.draws is Draws.DETERMINISTIC):
            raise TreeError(
                "a drawn tree carries the distributions it was drawn from, and only a drawn one"
            )
        if self.q is not None and self.q.shape[0] != self.nodes:
            raise TreeError(f"q has {self.q.shape[0]} rows for {self.nodes} draft nodes")
        return self
