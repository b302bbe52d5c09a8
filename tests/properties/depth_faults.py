"""Faulty parts that show only deep in a tree, among many siblings, late in a text, or at a tie."""

from collections.abc import Sequence

import torch
from attrs import evolve
from torch import Tensor

from draftwood.core.distributions import sampling_probs
from draftwood.core.interfaces import DraftSession, NodeDistributions, Target
from draftwood.core.node_distributions import TargetDistributions
from draftwood.core.options import Sampling
from draftwood.core.proposals import Children, FactorizedProposal, Frontier
from draftwood.core.randomness import Randomness
from draftwood.core.tree import TokenTree
from draftwood.core.values import Verdict
from draftwood.plugins.trees.sampled import Sampled
from draftwood.plugins.verifiers.match import Match
from draftwood.plugins.verifiers.multi_round import MultiRound
from draftwood.testing import OracleDrafter
from draftwood.testing.oracle import OracleDraftSession, Prefix

from .faults import redeclared


class _Redraws(Match):
    """`match` that, above temperature 0, gives token 0 for a bonus token 1 at some nodes."""

    def wrong(self, distributions: NodeDistributions, tree: TokenTree, node: int) -> bool:
        raise NotImplementedError

    def judge(self, distributions: NodeDistributions, tree: TokenTree, rng: Randomness) -> Verdict:
        verdict = super().judge(distributions, tree, rng)
        node = verdict.accepted[-1]
        if distributions.greedy or verdict.bonus != 1 or not self.wrong(distributions, tree, node):
            return verdict
        return evolve(verdict, bonus=0)


class DeepBonus(_Redraws):
    """At depth 3 and below."""

    def wrong(self, distributions: NodeDistributions, tree: TokenTree, node: int) -> bool:
        return tree.depth_list[node] >= 3


class ManyChildren(_Redraws):
    """At and after a node with four children or more."""

    def wrong(self, distributions: NodeDistributions, tree: TokenTree, node: int) -> bool:
        parent = tree.parent_list[node]
        return max(len(tree.children[node]), len(tree.children[parent]) if node else 0) >= 4


class LateRounds(_Redraws):
    """From the fourth round on."""

    def wrong(self, distributions: NodeDistributions, tree: TokenTree, node: int) -> bool:
        return distributions.round >= 3


class FarPositions(_Redraws):
    """From position 64 on."""

    def wrong(self, distributions: NodeDistributions, tree: TokenTree, node: int) -> bool:
        return distributions.position(node) >= 64


class LastOfEqual(Match):
    """At temperature 0 the last of equally likely tokens is chosen, where plain decoding's is the
    first."""

    def judge(self, distributions: NodeDistributions, tree: TokenTree, rng: Randomness) -> Verdict:
        verdict = super().judge(distributions, tree, rng)
        if not distributions.greedy or verdict.bonus is None:
            return verdict
        probs = distributions._scores(verdict.accepted[-1])  # type: ignore[attr-defined]
        equal = (probs == probs.max()).nonzero()[:, 0].tolist()
        children = tree.children[verdict.accepted[-1]]
        free = [token for token in equal if token not in [tree.token_list[c] for c in children]]
        return evolve(verdict, bonus=(free or [verdict.bonus])[-1])


class DeepWithoutProcessors(Match):
    """Processors are skipped below depth 2."""

    def judge(self, distributions: NodeDistributions, tree: TokenTree, rng: Randomness) -> Verdict:
        verdict = super().judge(distributions, tree, rng)
        node = verdict.accepted[-1]
        assert isinstance(distributions, TargetDistributions)
        if verdict.bonus is None or tree.depth_list[node] < 3 or not distributions._processors:
            return verdict
        probs = sampling_probs(distributions._logits[node], distributions.sampling)
        position = distributions.position(node)
        return evolve(verdict, bonus=rng.stream("deep").categorical(probs, position))


class WrappedKeys(MultiRound):
    """Draws with the position modulo 16, so that noise repeats after 16 tokens."""

    def judge(self, distributions: NodeDistributions, tree: TokenTree, rng: Randomness) -> Verdict:
        return super().judge(distributions, tree, _Modulo(rng))


class _Modulo(Randomness):
    def __init__(self, inner: Randomness) -> None:
        self.inner = inner

    def stream(self, name: str) -> Randomness:
        return _Modulo(self.inner.stream(name))

    def categorical(self, probs: Tensor, position: int, draw: int = 0) -> int:
        return self.inner.categorical(probs, position % 16, draw)

    def accept(self, probability: float, position: int, draw: int = 0) -> bool:
        return self.inner.accept(probability, position % 16, draw)


class TriplesOnce(MultiRound):
    """The third equal sibling in a row is accepted whenever it can be."""

    def judge(self, distributions: NodeDistributions, tree: TokenTree, rng: Randomness) -> Verdict:
        verdict = super().judge(distributions, tree, rng)
        node = verdict.accepted[-1]
        tokens = [tree.token_list[child] for child in tree.children[node]]
        for i in range(2, len(tokens)):
            if len(set(tokens[i - 2 : i + 1])) == 1 and distributions.probs(node)[tokens[i]] > 0:
                return evolve(verdict, bonus=tokens[i])
        return verdict


class DropsDeepUnlikely(Sampled):
    """A drawn node below depth 2 is dropped if it was unlikely."""

    def grow(self, *args: object) -> TokenTree:
        tree = super().grow(*args)  # type: ignore[arg-type]
        last = tree.nodes
        if last < 2 or tree.depth_list[last] < 3 or tree.q is None:
            return tree
        if tree.q[last - 1, tree.token_list[last]] > 0.5:
            return tree
        return redeclared(tree, tree.q, list(range(1, last)))


class SharesCommitted(OracleDrafter):
    """A fork keeps the original's list: what the original commits later appears in the fork."""

    def open(self, target: Target, sampling: Sampling) -> "OracleDraftSession":
        return _Sharing(sampling)


class _Sharing(OracleDraftSession):
    def __init__(self, sampling: Sampling, tokens: list[int] | None = None) -> None:
        self.sampling, self.tokens, self.own = sampling, [] if tokens is None else tokens, True

    @property
    def ids(self) -> Prefix:  # type: ignore[override]
        return tuple(self.tokens)

    def commit(self, tokens: Sequence[int], features: Tensor | None) -> None:
        if not self.own:
            self.tokens, self.own = list(self.tokens), True
        self.tokens.extend(tokens)

    def fork(self) -> DraftSession:
        fork = _Sharing(self.sampling, self.tokens)
        fork.own = False
        return fork


class WrongBelowTheRoot(FactorizedProposal):
    """Below the root `expand` scores tokens with another distribution than `probs`."""

    def expand(self, frontier: Frontier, k: int) -> Children:
        children = super().expand(frontier, k)
        if frontier.depth == 0:
            return children
        return evolve(children, log_q=torch.zeros_like(children.log_q))
