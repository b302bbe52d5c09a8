"""The proposal of a union: its sources' distributions, mixed with weights along every path."""

import torch
from attrs import define, evolve, field, frozen
from torch import Tensor

from draftwood.core.distributions import filtered, stable_topk
from draftwood.core.options import Sampling
from draftwood.core.proposals import (
    Children,
    Frontier,
    LookupProposal,
    Proposal,
    Table,
    path_table,
)
from draftwood.plugins.drafters.union.host_mixture import HostMixture, listed_source
from draftwood.plugins.drafters.union.source_weights import posterior_weights


@define(eq=False)
class _UnionState:
    """State of a frontier of F nodes.

    Attributes:
        weights: (F, S) float64, weights of the sources after a node's path; rows sum to one.
        frontiers: The sources' own frontiers of the same nodes, None beyond a source's depth.
        probs: The sources' distributions there, computed when first read.
    """

    weights: Tensor
    frontiers: tuple[Frontier | None, ...]
    probs: list[Tensor | None] = field(factory=list)


@frozen(eq=False)
class UnionProposal(Proposal):
    """q(x | path) = sum_s w_s(path) q_s(x | path) / sum_s w_s(path), over the active sources.

    A source is active at a node if it has a distribution there: within its depth, and for a
    look-up where it has a continuation. Along a path the weights follow `posterior_weights`. A path
    that several sources propose is one node with their mixed probability.

    Attributes:
        sources: Proposals of the S sources; the temperature is in their distributions.
        weights: (S,) weights of the sources at the root.
        sampling: Its filters apply to the mixed distribution.
        vocab_size: V of the target.
    """

    sources: tuple[Proposal, ...]
    weights: tuple[float, ...]
    sampling: Sampling
    vocab_size: int

    @property
    def pass_per_level(self) -> bool:  # type: ignore[override]
        return any(source.pass_per_level for source in self.sources)

    @property
    def passes(self) -> int:  # type: ignore[override]
        return sum(source.passes for source in self.sources)

    @property
    def min_score_temperature(self) -> float:  # type: ignore[override]
        return max(source.min_score_temperature for source in self.sources)

    @property
    def max_depth(self) -> int:  # type: ignore[override]
        return max(source.max_depth for source in self.sources)

    @property
    def device(self) -> torch.device:
        devices = [source.device for source in self.sources]
        return next((device for device in devices if device.type != "cpu"), devices[0])

    def tempered(self, temperature: float) -> "UnionProposal":
        return evolve(
            self,
            sources=tuple(source.tempered(temperature) for source in self.sources),
            sampling=evolve(self.sampling, temperature=temperature),
        )

    def root(self) -> Frontier:
        weights = torch.tensor([self.weights], dtype=torch.float64, device=self.device)
        frontiers = (source.root() if source.max_depth else None for source in self.sources)
        return Frontier(0, 1, _UnionState(weights, tuple(frontiers)))

    def expand(self, at: Frontier, k: int) -> Children:
        tokens, probs = stable_topk(self.probs(at), k)
        return Children(tokens, probs.double().log())

    def table(self, k: int) -> Table | None:
        """From the sources' own tables; None with filters, which need whole distributions."""
        sampling = self.sampling
        if sampling.greedy or sampling.top_k or sampling.top_p or sampling.min_p:
            return None
        listed = [listed_source(source, self.vocab_size) for source in self.sources]
        known = [source for source in listed if source is not None]
        if len(known) < len(listed):
            return None
        return path_table(HostMixture(known, self.weights).following, self.max_depth, k)

    def probs(self, at: Frontier) -> Tensor:
        mixed = self._mixed(at)
        inactive = mixed.sum(-1) == 0
        if self.sampling.greedy:
            probs = torch.zeros_like(mixed).scatter_(-1, mixed.argmax(-1, keepdim=True), 1.0)
        else:
            probs = filtered(mixed.log(), self.sampling).softmax(-1)
        # Where no source is active there is no distribution, and nothing becomes a node.
        return probs.masked_fill(inactive[:, None], 0.0)

    def advance(self, at: Frontier, rows: Tensor, tokens: Tensor) -> Frontier:
        parents, children = rows.to(self.device), tokens.to(self.device)
        weights = at.state.weights[parents]
        absent = weights.new_zeros(len(weights))
        likelihoods, active = [], []
        for probs in self._source_probs(at):
            likelihoods.append(absent if probs is None else probs[parents, children].double())
            active.append(absent if probs is None else (probs[parents].sum(-1) > 0).double())
        weights = torch.stack(posterior_weights(weights.unbind(-1), likelihoods, active), -1)
        frontiers = tuple(
            source.advance(frontier, rows, tokens)
            if frontier is not None and at.depth + 1 < source.max_depth
            else None
            for source, frontier in zip(self.sources, at.state.frontiers, strict=True)
        )
        return Frontier(at.depth + 1, rows.shape[0], _UnionState(weights, frontiers))

    def _source_probs(self, at: Frontier) -> list[Tensor | None]:
        """(F, V) of each source, zero in rows where it is inactive; None beyond its depth."""
        state: _UnionState = at.state
        if not state.probs:
            for source, frontier in zip(self.sources, state.frontiers, strict=True):
                state.probs.append(None if frontier is None else self._probs_of(source, frontier))
        return state.probs

    def _probs_of(self, source: Proposal, frontier: Frontier) -> Tensor:
        if not isinstance(source, LookupProposal):
            return source.probs(frontier).to(self.device)
        # All tokens share the mass that a look-up leaves.
        children = source.expand(frontier, self.vocab_size)
        named = children.log_q.exp()
        probs = torch.zeros((frontier.size, self.vocab_size), dtype=named.dtype)
        probs.scatter_add_(1, children.tokens, named)
        mass = probs.sum(-1, keepdim=True)
        probs = torch.where(mass > 0, probs + (1 - mass) / self.vocab_size, 0.0)
        return probs.to(self.device)

    def _mixed(self, at: Frontier) -> Tensor:
        """(F, V) mixed distribution before filters, zero in rows without an active source."""
        total: Tensor | None = None
        share = torch.zeros_like(at.state.weights[:, 0])
        for i, probs in enumerate(self._source_probs(at)):
            if probs is None:
                continue
            weight = at.state.weights[:, i] * (probs.sum(-1) > 0)
            part = weight[:, None].to(probs.dtype) * probs
            total = part if total is None else total + part
            share = share + weight
        if total is None:
            return torch.zeros((at.size, self.vocab_size), device=self.device)
        return total / share.clamp(min=torch.finfo(torch.float64).tiny)[:, None].to(total.dtype)
