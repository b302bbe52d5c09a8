"""Faulty parts, as they have occurred: each fulfils its interface and biases the output."""

import itertools
from collections.abc import Callable

import torch
from attrs import evolve

from draftwood.core.controlled_round import ControlledRound
from draftwood.core.distributions import sampling_probs
from draftwood.core.draws import Draws
from draftwood.core.engine import Engine, Run, Stopwatch
from draftwood.core.interfaces import NodeDistributions
from draftwood.core.node_distributions import TargetDistributions
from draftwood.core.options import Sampling
from draftwood.core.proposals import FactorizedProposal, MixtureProposal, Proposal, Vocabulary
from draftwood.core.randomness import Randomness
from draftwood.core.tree import TokenTree
from draftwood.core.values import Forwarded, Verdict
from draftwood.plugins.controllers.fixed import Fixed
from draftwood.plugins.trees.best_first import BestFirst
from draftwood.plugins.trees.options import BestFirstOptions, SampledOptions
from draftwood.plugins.trees.sampled import Sampled
from draftwood.plugins.verifiers import traversal
from draftwood.plugins.verifiers.match import Match
from draftwood.plugins.verifiers.ratio import Ratio
from draftwood.plugins.verifiers.residual import ratio
from draftwood.plugins.verifiers.traversal import Traversal
from draftwood.testing import OracleDrafter, toy_drafter, toy_proposal


def redeclared(
    tree: TokenTree, q: torch.Tensor | None, nodes: list[int] | None = None
) -> TokenTree:
    """The tree with other declared distributions, and with these draft nodes only."""
    kept = [0, *(nodes or range(1, len(tree)))]
    index = {node: i for i, node in enumerate(kept)}
    assert q is not None
    return TokenTree.from_lists(
        [tree.token_list[node] for node in kept],
        [index.get(tree.parent_list[node], -1) for node in kept],
        [tree.depth_list[node] for node in kept],
        [float(tree.log_rho[node]) for node in kept],
        tree.draws,
        q[[node - 1 for node in kept[1:]]],
    )


class BonusFromTheRoot(Match):
    """Draws the bonus from the root's distribution for every path."""

    def judge(self, distributions: NodeDistributions, tree: TokenTree, rng: Randomness) -> Verdict:
        verdict = super().judge(distributions, tree, rng)
        if len(verdict.accepted) == 1:
            return verdict
        return evolve(
            verdict,
            bonus=rng.stream("x").categorical(distributions.probs(0), distributions.position(0)),
        )


class ArgmaxAcceptance(Match):
    """Above temperature 0, follows the target's argmax and samples the bonus only."""

    def judge(self, distributions: NodeDistributions, tree: TokenTree, rng: Randomness) -> Verdict:
        accepted, node = [0], 0
        while True:
            best = distributions.argmax(node)
            match = [c for c in tree.children[node] if tree.token_list[c] == best]
            if not match:
                token = rng.categorical(distributions.probs(node), distributions.position(node))
                return Verdict(tuple(accepted), token)
            node = match[0]
            accepted.append(node)


class AlwaysAccepts(Match):
    """Accepts the first child without reading the target's distribution."""

    def judge(self, distributions: NodeDistributions, tree: TokenTree, rng: Randomness) -> Verdict:
        if tree.nodes == 0:
            return super().judge(distributions, tree, rng)
        return Verdict((0, 1), rng.categorical(distributions.probs(1), distributions.position(1)))


class BonusFromP(Ratio):
    """After a rejection draws from p instead of the residual."""

    def judge(self, distributions: NodeDistributions, tree: TokenTree, rng: Randomness) -> Verdict:
        accepted, node = [0], 0
        while tree.children[node]:
            (child,) = tree.children[node]
            assert tree.q is not None
            p, q, position = (
                distributions.probs(node),
                tree.q[child - 1],
                distributions.position(node),
            )
            if not rng.accept(ratio(p, q, tree.token_list[child]), position):
                return Verdict(tuple(accepted), rng.categorical(p, position, 1))
            accepted.append(child)
            node = child
        return Verdict(
            tuple(accepted),
            rng.categorical(distributions.probs(node), distributions.position(node)),
        )


_rejected = traversal.rejected


class _WrongRejection(Traversal):
    """Traversal with another distribution after a rejection."""

    @staticmethod
    def rejected(a: float, p: torch.Tensor, q: torch.Tensor) -> tuple[float, torch.Tensor]:
        raise NotImplementedError

    def judge(self, distributions: NodeDistributions, tree: TokenTree, rng: Randomness) -> Verdict:
        traversal.rejected = self.rejected
        try:
            return super().judge(distributions, tree, rng)
        finally:
            traversal.rejected = _rejected


class PotentialKept(_WrongRejection):
    """A rejected child does not change its parent's potential."""

    @staticmethod
    def rejected(a: float, p: torch.Tensor, q: torch.Tensor) -> tuple[float, torch.Tensor]:
        return a, _rejected(a, p, q)[1]


class PotentialOfTheRest(_WrongRejection):
    """The potential is divided by the mass that q leaves, which is a wrong denominator."""

    @staticmethod
    def rejected(a: float, p: torch.Tensor, q: torch.Tensor) -> tuple[float, torch.Tensor]:
        _, probs = _rejected(a, p, q)
        residual = float((a * p - q).clamp_min(0.0).sum())
        return min(1.0, residual / max(1.0 - float(q.max()), 1e-9)), probs


class NotRenormalised(Sampled):
    """Siblings without replacement all declare the distribution of the first draw."""

    def grow(self, *args: object) -> TokenTree:
        tree = super().grow(*args)  # type: ignore[arg-type]
        if tree.q is None:
            return tree
        q = tree.q.clone()
        for nodes in tree.children:
            for node in nodes[1:]:
                q[node - 1] = q[nodes[0] - 1]
        return redeclared(tree, q)


class CutByScore(Sampled):
    """Drops the last drawn node if its own score is low."""

    def grow(self, *args: object) -> TokenTree:
        tree = super().grow(*args)  # type: ignore[arg-type]
        if tree.nodes < 2 or tree.log_rho[-1] > -1.0:
            return tree
        return redeclared(tree, tree.q, list(range(1, tree.nodes)))


class MergedDuplicates(Sampled):
    """I.i.d. siblings with one token are judged once."""

    def grow(self, *args: object) -> TokenTree:
        tree = super().grow(*args)  # type: ignore[arg-type]
        seen: set[tuple[int, int]] = set()
        kept = []
        for node in range(1, len(tree)):
            key = (tree.parent_list[node], tree.token_list[node])
            if key not in seen:
                seen.add(key)
                kept.append(node)
        return tree if len(kept) == tree.nodes else redeclared(tree, tree.q, kept)


class Declares(Sampled):
    """Draws from the proposal, and declares the distributions of another one."""

    def __init__(self, options: SampledOptions, other: Callable[[Proposal], Proposal]) -> None:
        super().__init__(options)
        self.other = other

    def grow(self, anchor: int, proposal: Proposal, *rest: object) -> TokenTree:
        tree = super().grow(anchor, proposal, *rest)  # type: ignore[arg-type]
        if tree.q is None:
            return tree
        return redeclared(tree, distributions_along(self.other(proposal), tree).to(tree.q.dtype))


class PretendsToHaveDrawn(BestFirst):
    """Declares the most probable tokens as draws without replacement."""

    def grow(self, anchor: int, proposal: Proposal, *rest: object) -> TokenTree:
        tree = super().grow(anchor, proposal, *rest)  # type: ignore[arg-type]
        if tree.nodes == 0:
            return tree
        q = distributions_along(proposal, tree)
        for siblings in tree.children:
            for earlier, node in itertools.pairwise(siblings):
                row = q[earlier - 1].clone()
                row[tree.token_list[earlier]] = 0.0
                q[node - 1] = row / row.sum()
        lists = tree.token_list, tree.parent_list, tree.depth_list, tree.log_rho.tolist()
        return TokenTree.from_lists(*lists, Draws.WITHOUT_REPLACEMENT, q)


def distributions_along(proposal: Proposal, tree: TokenTree) -> torch.Tensor:
    """(N, V): the proposal's distribution of each draft node given its path."""
    rows = []
    for node in range(1, len(tree)):
        at = proposal.root()
        for step in tree.path(node)[1:-1]:
            at = proposal.advance(at, torch.tensor([0]), torch.tensor([tree.token_list[step]]))
        rows.append(proposal.probs(at)[0])
    return torch.stack(rows).clone()


def raw_softmax(proposal: Proposal) -> Proposal:
    """Without the temperature and filters that it is drawn with."""
    return evolve(proposal, sampling=Sampling(1.0))


def untempered(proposal: Proposal) -> Proposal:
    return evolve(proposal, prior_temperature=1.0)


def marginals(proposal: Proposal) -> Proposal:
    """Each position by itself, as if a branch were drawn for every token."""
    assert isinstance(proposal, MixtureProposal)
    probs = proposal.root().state[0] @ proposal._target_probs.flatten(1)
    rows = probs.reshape(proposal._target_probs.shape[1:]).log()
    return FactorizedProposal(rows, Sampling(1.0), Vocabulary(rows.shape[1]))


def lottery(seed: int) -> OracleDrafter:
    """A mixture of three one-hot branches with a tempered prior, at every target temperature.

    A drawn chain is the greedy path of one branch."""
    inner = toy_drafter("mixture", seed)

    def propose(prefix: tuple[int, ...], sampling: Sampling) -> Proposal:
        return evolve(inner._propose(prefix, Sampling(0.0)), prior_temperature=2.5)

    return OracleDrafter(propose)


def greedy_drafts(seed: int) -> OracleDrafter:
    """Drafts are argmaxes at every target temperature."""
    inner = toy_drafter("factorized", seed)
    return OracleDrafter(lambda prefix, sampling: inner._propose(prefix, Sampling(0.0)))


class SharedStream(Engine):
    """The verifier draws from the drafter's stream."""

    def _judge(self, run: Run, tree: TokenTree, distributions: TargetDistributions) -> Verdict:
        rng = run.request.randomness.stream(f"draft/{distributions.round}")
        return self.verifier.judge(distributions, tree, rng)


class Reseeded(Engine):
    """Every round's drafts are drawn with the same numbers."""

    def _draft(self, run: Run, controlled: ControlledRound, watch: Stopwatch) -> TokenTree:
        right = controlled.ctx
        controlled.ctx = evolve(right, round=0)
        try:
            return super()._draft(run, controlled, watch)
        finally:
            controlled.ctx = right


class _WithoutProcessors(TargetDistributions):
    def probs(self, node: int) -> torch.Tensor:
        """Nodes with children are judged by the model's distribution, without processors."""
        if not self._tree.children[node]:
            return super().probs(node)
        return sampling_probs(self._logits[node], self.sampling)


class ProcessorsAtTheBonus(Engine):
    """Penalties apply to the bonus token only."""

    def _distributions(
        self, run: Run, tree: TokenTree, forwarded: Forwarded
    ) -> TargetDistributions:
        right = super()._distributions(run, tree, forwarded)
        return _WithoutProcessors(
            right._logits, tree, run.ids, right.sampling, right._processors, right.round
        )


class _CommittedTextOnly(TargetDistributions):
    def _scores(self, node: int) -> torch.Tensor:
        """Processors see the committed text, without the path to the node."""
        scores, ids = self._logits[node][None], torch.tensor([list(self._history)])
        for processor in self._processors:
            scores = processor(ids, scores)
        return scores[0]


class ProcessorsWithoutThePath(Engine):
    """Penalties see the committed text at every node of a round."""

    def _distributions(
        self, run: Run, tree: TokenTree, forwarded: Forwarded
    ) -> TargetDistributions:
        right = super()._distributions(run, tree, forwarded)
        return _CommittedTextOnly(
            right._logits, tree, list(run.ids), right.sampling, right._processors, right.round
        )


def as_engine(kind: type[Engine], right: Engine) -> Engine:
    """The same pipeline in another engine."""
    return kind(
        right.target, right.verifier, right.drafter, right.tree, right.controller, right.clock
    )


BEST_FOUR = BestFirstOptions(max_nodes=4)
WIDE = SampledOptions(widths=(3,), replacement=True)


class OneTooMany(Fixed):
    """Chooses a node more than the tree has."""

    def choose(self, tree: TokenTree, ctx: object, state: object) -> int:
        return tree.nodes + 1


class ForgetsItsTemperature(OracleDrafter):
    """Proposes the raw softmax at every temperature."""

    def __init__(self) -> None:
        super().__init__(
            lambda prefix, sampling: toy_proposal("factorized", prefix, Sampling(0.8), vocab=3)
        )
