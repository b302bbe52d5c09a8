"""Targets and drafters without weights, whose distributions are functions of the prefix."""

import itertools
from collections.abc import Callable, Mapping, Sequence

import torch
from attrs import define, field
from torch import Tensor

from draftwood.core.interfaces import Drafter, DraftSession, DraftWork, Target, TargetSession
from draftwood.core.kernels.protocol import Kernels
from draftwood.core.options import Sampling
from draftwood.core.proposals import Proposal
from draftwood.core.tree import TokenTree
from draftwood.core.values import Forwarded

Prefix = tuple[int, ...]


class OracleTarget(Target):
    """A target whose next-token distribution is any function of the prefix.

    Args:
        vocab_size: Number of tokens, V.
        probs: Prefix -> V non-negative numbers, which are normalised here. Their logarithms are the
            logits, in float64.
        max_context: Most tokens of a text; None for no limit.
        costs: Prices of forwards.
    """

    def __init__(
        self,
        vocab_size: int,
        probs: Callable[[Prefix], Sequence[float]],
        max_context: int | None = None,
        costs: "ScriptedCosts | None" = None,
    ) -> None:
        self.vocab_size, self.max_context = vocab_size, max_context
        self.eos_token_ids: frozenset[int] = frozenset()
        self.device = torch.device("cpu")
        self._probs, self._costs = probs, costs
        self._logits: dict[Prefix, Tensor] = {}

    def logits(self, prefix: Prefix) -> Tensor:
        """(V,) float64 logits after `prefix`."""
        if prefix not in self._logits:
            probs = torch.tensor(self._probs(prefix), dtype=torch.float64)
            self._logits[prefix] = (probs / probs.sum()).log()
        return self._logits[prefix]

    def open(self, taps: Sequence[int] = (), kernels: object = None) -> "OracleSession":
        return OracleSession(self)

    def forward(self, work: Sequence[tuple[TargetSession, TokenTree]]) -> list[Forwarded]:
        results = []
        for session, tree in work:
            assert isinstance(session, OracleSession)
            session.tree = tree
            paths = [
                (*session.ids, *(tree.token_list[i] for i in tree.path(node)))
                for node in range(len(tree))
            ]
            results.append(Forwarded(torch.stack([self.logits(path) for path in paths])))
        return results

    def costs(self, clock: Callable[[], float], kernels: Kernels | None = None) -> "ScriptedCosts":
        return self._costs or ScriptedCosts()


class OracleSession(TargetSession):
    """Keeps the committed prefix, and the tree of the last forward."""

    def __init__(self, target: OracleTarget, ids: Prefix = ()) -> None:
        self.target, self.ids = target, ids
        self.tree: TokenTree | None = None

    @property
    def length(self) -> int:
        return len(self.ids)

    def prefill(self, ids: Sequence[int], inputs: object = None) -> Forwarded:
        assert not inputs, "a table has no inputs but tokens"
        self.ids = tuple(ids)
        return Forwarded(self.target.logits(self.ids)[None])

    def commit(self, path: Sequence[int]) -> None:
        assert self.tree is not None
        self.ids = (*self.ids, *(self.tree.token_list[node] for node in path))
        self.tree = None

    def fork(self) -> "OracleSession":
        return OracleSession(self.target, self.ids)


class OracleDrafter(Drafter):
    """A drafter whose proposal is any function of the prefix and the sampling settings."""

    def __init__(self, propose: Callable[[Prefix, Sampling], Proposal]) -> None:
        self._propose = propose

    def open(self, target: Target, sampling: Sampling) -> "OracleDraftSession":
        return OracleDraftSession(sampling)

    def propose(self, work: Sequence[DraftWork]) -> list[Proposal]:
        proposals = []
        for item in work:
            assert isinstance(item.session, OracleDraftSession)
            prefix = (*item.session.ids, item.anchor)
            proposals.append(self._propose(prefix, item.session.sampling))
        return proposals


class OracleDraftSession(DraftSession):
    """Keeps every committed token but the anchor."""

    def __init__(self, sampling: Sampling, ids: Prefix = ()) -> None:
        self.sampling, self.ids = sampling, ids

    def commit(self, tokens: Sequence[int], features: Tensor | None) -> None:
        self.ids = (*self.ids, *tokens)

    def fork(self) -> "OracleDraftSession":
        return OracleDraftSession(self.sampling, self.ids)


class ScriptedClock:
    """A clock that advances by a script of increments (seconds, cycled), one at each read.

    `restart` returns to the beginning of the script without going back in time. The measured times
    of a round are then a function of the round alone, as enumeration needs.
    """

    def __init__(self, increments: Sequence[float] = (1e-3,)) -> None:
        self._script = tuple(increments)
        self._now = 0.0
        self.restart()

    def restart(self) -> None:
        self._increments = itertools.cycle(self._script)

    def __call__(self) -> float:
        self._now += next(self._increments)
        return self._now


@define
class ScriptedCosts:
    """A CostProbe with scripted prices for a forward of s tokens on a context of c tokens.

    Attributes:
        base: Seconds of every forward.
        per_token: Seconds per token, times s.
        per_pair: Seconds per token and context token, times s c.
        identity: Of the machine.
        sizes: That forwards are padded to, ascending.
    """

    base: float = 1e-2
    per_token: float = 1e-4
    per_pair: float = 0.0
    identity: Mapping[str, str] = field(factory=lambda: {"device": "scripted"})
    sizes: tuple[int, ...] = ()

    def seconds(self, tokens: int, context: int) -> float:
        return self.base + self.per_token * tokens + self.per_pair * tokens * context

    def flops(self, tokens: int, context: int) -> float:
        return 1e6 * tokens + 1e2 * tokens * (context + tokens)

    def bytes(self, tokens: int, context: int) -> float:
        return 1e6 + 1e2 * (context + tokens)

    def peaks(self) -> tuple[float, float]:
        return 1e10, 1e9
