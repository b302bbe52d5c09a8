"""Draft trees: the candidates that the target verifies in one forward pass."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from attrs import field, frozen
from torch import Tensor

from draftwood.core import devices
from draftwood.core.draws import Draws
from draftwood.core.errors import TreeError

_COLUMNS = ("tokens", "parents", "depths", "log_rho")
_LARGEST = 2**32  # more tokens than any vocabulary has


@frozen(eq=False)
class TokenTree:
    """Node 0 (the anchor) and N draft nodes of one request, in growth order.

    Every prefix of the growth order is a valid tree. The tensors stay on the device where the tree
    was grown; the lists are copied to the host when they are first read.

    Attributes:
        tokens: (N+1,) int64.
        parents: (N+1,) int64; parents[0] is -1 and parents[i] < i.
        depths: (N+1,) int64.
        log_rho: (N+1,) float64, log path scores; log_rho[0] is 0.
        draws: How the nodes were chosen.
        q: (N, V) for drawn trees: row i-1 is the distribution that the token of node i was drawn
            from, in the dtype it was drawn in. None for deterministic trees.
    """

    tokens: Tensor
    parents: Tensor
    depths: Tensor
    log_rho: Tensor
    draws: Draws = Draws.DETERMINISTIC
    q: Tensor | None = None
    # Lists of the four columns: reading a tensor element by element takes microseconds for each.
    _lists: dict[str, list[Any]] = field(factory=dict, init=False, repr=False)

    @classmethod
    def root(cls, token: int) -> "TokenTree":
        """The tree of the anchor alone: a plain autoregressive step."""
        return cls.from_lists([token], [-1], [0], [0.0])

    @classmethod
    def chain(cls, tokens: Sequence[int]) -> "TokenTree":
        """One path through `tokens`, the anchor first, with path scores of 1."""
        size = len(tokens)
        return cls.from_lists(
            list(tokens), list(range(-1, size - 1)), list(range(size)), [0.0] * size
        )

    @classmethod
    def from_lists(
        cls,
        tokens: list[int],
        parents: list[int],
        depths: list[int],
        log_rho: list[float],
        draws: Draws = Draws.DETERMINISTIC,
        q: Tensor | None = None,
    ) -> "TokenTree":
        """A tree on the host from its columns, node 0 first. The tree keeps the lists."""
        # Through numpy: torch.tensor inspects each element of a list on its own.
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

    def keep_lists(self, **lists: list[Any]) -> None:
        """Keep columns, by name, that were copied to the host together with something else."""
        self._lists.update(lists)

    @property
    def token_list(self) -> list[int]:
        """`tokens` on the host."""
        return self._list("tokens")

    @property
    def parent_list(self) -> list[int]:
        """`parents` on the host."""
        return self._list("parents")

    @property
    def depth_list(self) -> list[int]:
        """`depths` on the host."""
        return self._list("depths")

    @property
    def log_rho_list(self) -> list[float]:
        """`log_rho` on the host."""
        return self._list("log_rho")

    @property
    def children(self) -> list[list[int]]:
        """The children of each node, in growth order (for drawn trees: in draw order)."""
        if "children" not in self._lists:
            children: list[list[int]] = [[] for _ in range(len(self))]
            for node, parent in enumerate(self.parent_list[1:], 1):
                children[parent].append(node)
            self._lists["children"] = children
        return self._lists["children"]

    @property
    def is_chain(self) -> bool:
        """Whether the parent of node i is node i-1: then a causal mask is the tree's mask."""
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

    def without_descendants(self, tokens: frozenset[int]) -> "TokenTree":
        """The tree without the nodes below draft nodes of these tokens, after which a text ends.

        Whether a node stays depends on the tokens above it alone, so drawn nodes keep their
        distributions. A tree on a device is returned as it is: reading it would synchronise.
        """
        if not tokens or not devices.reads_without_sync(self.tokens.device):
            return self
        if tokens.isdisjoint(self.token_list[1:]):
            return self
        listed, parents = self.token_list, self.parent_list
        index, kept = {0: 0}, [0]
        for node in range(1, len(self)):
            parent = parents[node]
            if parent in index and (parent == 0 or listed[parent] not in tokens):
                index[node] = len(kept)
                kept.append(node)
        if len(kept) == len(self):
            return self
        return TokenTree.from_lists(
            [listed[node] for node in kept],
            [-1, *(index[parents[node]] for node in kept[1:])],
            [self.depth_list[node] for node in kept],
            [self.log_rho_list[node] for node in kept],
            self.draws,
            None if self.q is None else self.q[[node - 1 for node in kept[1:]]],
        )

    def cut(self, nodes: int) -> "TokenTree":
        """The tree of the first `nodes` draft nodes.

        Raises:
            TreeError: The tree is drawn. Keeping drawn nodes by their scores would change the
                distribution of what is kept.
        """
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
        tree._lists.update(
            (name, self._lists[name][:n]) for name in _COLUMNS if name in self._lists
        )
        return tree

    @property
    def on_host(self) -> bool:
        """Whether all columns can be read without waiting for a device."""
        return devices.reads_without_sync(self.tokens.device) or all(
            name in self._lists for name in _COLUMNS
        )

    def validate(
        self,
        *,
        anchor: int | None = None,
        nodes: int | None = None,
        depth: int | None = None,
        vocab_size: int | None = None,
    ) -> "TokenTree":
        """Check the invariants of a tree; return the tree.

        Columns on a device that were not copied to the host yet are not read: then only shapes and
        dtypes are checked.

        Args:
            anchor: Token that node 0 must hold.
            nodes: Most draft nodes.
            depth: Depth of the deepest node allowed.
            vocab_size: Tokens must be below it, and `q` must be as wide.

        Raises:
            TreeError: An invariant or a limit is broken; the message names the node.
        """
        self._check_shapes(nodes, vocab_size)
        if self.on_host:
            self._check_columns(anchor, depth, vocab_size)
        return self

    def _check_shapes(self, nodes: int | None, vocab_size: int | None) -> None:
        columns = [getattr(self, name) for name in _COLUMNS]
        size = self.tokens.numel()
        if size == 0 or any(column.shape != (size,) for column in columns):
            shapes = [tuple(column.shape) for column in columns]
            raise TreeError(f"columns must be (N+1,); their shapes are {shapes}")
        if any(column.dtype is not torch.int64 for column in columns[:3]):
            raise TreeError("tokens, parents and depths must be int64")
        if nodes is not None and size - 1 > nodes:
            raise TreeError(f"the tree has {size - 1} draft nodes; the limit is {nodes}")
        if (self.q is None) != (self.draws is Draws.DETERMINISTIC):
            raise TreeError(
                f"draws is {self.draws} and q is {'None' if self.q is None else 'given'}: drawn "
                "trees, and only they, carry the distributions they were drawn from"
            )
        if self.q is None:
            return
        if self.q.shape[0] != size - 1:
            raise TreeError(f"q has {self.q.shape[0]} rows for {size - 1} draft nodes")
        if vocab_size is not None and self.q.shape[1:] != (vocab_size,):
            raise TreeError(f"q must be (N, {vocab_size}); its shape is {tuple(self.q.shape)}")

    def _check_columns(self, anchor: int | None, depth: int | None, vocab_size: int | None) -> None:
        # Vectorised: the engine checks every tree of a policy, on the host within a round.
        tokens, parents, depths, log_rho = map(self._host_column, _COLUMNS)
        if parents[0] != -1 or depths[0] != 0 or log_rho[0] != 0:
            raise TreeError("node 0 must be a root: parent -1, depth 0, log_rho 0")
        if anchor is not None and tokens[0] != anchor:
            raise TreeError(f"node 0 holds token {tokens[0]}; the anchor is token {anchor}")
        above = parents[1:]
        if node := _first(above.view(np.uint64) > np.arange(len(above), dtype=np.uint64)):
            raise TreeError(f"node {node} has parent {parents[node]}; parents precede children")
        if node := _first(depths[1:] != depths[above] + 1):
            raise TreeError(
                f"node {node} has depth {depths[node]}; its parent has {depths[parents[node]]}"
            )
        if depth is not None and depths.max() > depth:
            raise TreeError(f"the tree is {depths.max()} deep; the limit is {depth}")
        # As unsigned integers, negative tokens are the largest.
        width = int(tokens.view(np.uint64).max()) + 1
        if width > (_LARGEST if vocab_size is None else vocab_size):
            node = int(tokens.view(np.uint64).argmax())
            raise TreeError(f"node {node} holds token {tokens[node]}, outside the vocabulary")
        if self.draws is Draws.CHAIN and not self.is_chain:
            raise TreeError("a tree of chain draws must be one path")
        if self.draws is not Draws.IID:
            edges = np.sort(above * width + tokens[1:])
            if node := _first(edges[1:] == edges[:-1]):
                parent, token = divmod(int(edges[node]), width)
                raise TreeError(f"node {parent} has two children with token {token}")

    def _host_column(self, name: str) -> "np.ndarray[Any, Any]":
        column: Tensor = getattr(self, name)
        if devices.reads_without_sync(column.device):
            return column.numpy()
        return np.array(self._list(name))


def _first(broken: "np.ndarray[Any, Any]") -> int:
    """1 + the index of the first true entry; 0 if there is none."""
    return 1 + int(broken.argmax()) if broken.any() else 0


class TreeBuilder:
    """Builds a tree node by node; for authors of tree policies.

        builder = TreeBuilder(anchor)
        first = builder.add(0, token=17, log_q=-0.1)
        builder.add(first, token=4, log_q=-0.7)
        tree = builder.build()

    Args:
        anchor: Token of node 0.
        draws: How the nodes are chosen. Drawn nodes must be added in the order they were drawn.
    """

    def __init__(self, anchor: int, draws: Draws = Draws.DETERMINISTIC) -> None:
        self.draws = draws
        self.tokens, self.parents, self.depths, self.log_rho = [anchor], [-1], [0], [0.0]
        self._q: list[Tensor] = []

    @property
    def nodes(self) -> int:
        """Draft nodes so far."""
        return len(self.tokens) - 1

    def add(self, parent: int, token: int, log_q: float, q: Tensor | None = None) -> int:
        """Add a node; return its index.

        Args:
            parent: Index of a node added before; 0 is the anchor.
            token: The node's token.
            log_q: Log of the drafter's probability of `token` after the parent's path.
            q: (V,) distribution that the token was drawn from; for drawn trees only.

        Raises:
            TreeError: There is no such parent, or `q` does not fit `draws`.
        """
        if not 0 <= parent < len(self.tokens):
            raise TreeError(f"no node {parent}; the tree has nodes 0 to {self.nodes}")
        if (q is None) != (self.draws is Draws.DETERMINISTIC):
            raise TreeError("give q for each node of a drawn tree, and for no other")
        if q is not None:
            self._q.append(q)
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(self.depths[parent] + 1)
        self.log_rho.append(self.log_rho[parent] + log_q)
        return self.nodes

    def build(self) -> TokenTree:
        """The tree so far. More nodes can be added afterwards; they are not part of it."""
        if not self.nodes:
            return TokenTree.root(self.tokens[0])
        columns = (self.tokens.copy(), self.parents.copy(), self.depths.copy())
        q = torch.stack(self._q) if self._q else None
        return TokenTree.from_lists(*columns, self.log_rho.copy(), self.draws, q)
