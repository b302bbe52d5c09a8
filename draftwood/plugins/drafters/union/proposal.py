"""The proposal of a union: its sources' distributions, mixed and weighed anew along every path."""

import torch
from attrs import define, evolve, field, frozen
from torch import Tensor

from draftwood.core.distributions import filtered, stable_topk
from draftwood.core.options import Sampling
from draftwood.core.proposals import Children, Frontier, LookupProposal, Proposal, Table, path_table
from draftwood.plugins.drafters.union.host import (
    LISTED,
    Guessed,
    HostMixture,
    Listing,
    Tabled,
)


def listing(source: Proposal, vocab_size: int) -> Listing | None:
    """What a source says, token by token on the host; None where that would run its model."""
    if isinstance(source, LookupProposal):
        return Guessed(source, vocab_size)
    table = source.table(LISTED)
    return None if table is None else Tabled(table)


@define(eq=False)
class Nodes:
    """A frontier's state. weights: (F, S) float64, of each source after a node's path, summing to
    one. fronts: the sources' own frontiers of the same nodes, None past a source's depth.
    distributions: what they say there, filled in when first asked for."""

    weights: Tensor
    fronts: tuple[Frontier | None, ...]
    distributions: list[Tensor | None] = field(factory=list)


@frozen(eq=False)
class UnionProposal(Proposal):
    """q(x | path) = sum_s w_s(path) q_s(x | path) / sum_s w_s(path), over the sources that speak.

    weights: (S,) of the sources before any token. A source that gave a path's tokens more chance
    weighs more after them; one that is silent at a node (past its depth, or without a
    continuation) has no part in it and keeps its weight. Paths that several sources propose are
    one node with their joint chance. sampling: the temperature is in the sources' own
    distributions, the filters apply to the mixed one."""

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
        fronts = (source.root() if source.max_depth else None for source in self.sources)
        return Frontier(0, 1, Nodes(weights, tuple(fronts)))

    def expand(self, at: Frontier, k: int) -> Children:
        tokens, probs = stable_topk(self.probs(at), k)
        return Children(tokens, probs.double().log())

    def table(self, k: int) -> Table | None:
        """On the host, from the sources' own tables. Filters need whole distributions: None with
        them."""
        sampling = self.sampling
        if sampling.greedy or sampling.top_k or sampling.top_p or sampling.min_p:
            return None
        listings = [listing(source, self.vocab_size) for source in self.sources]
        known = [one for one in listings if one is not None]
        if len(known) < len(listings):
            return None
        mixture = HostMixture(known, self.weights)
        return path_table(mixture.following, self.max_depth, k)

    def probs(self, at: Frontier) -> Tensor:
        mixed = self._mixed(at)
        silent = mixed.sum(-1) == 0
        if self.sampling.greedy:
            probs = torch.zeros_like(mixed).scatter_(-1, mixed.argmax(-1, keepdim=True), 1.0)
        else:
            probs = filtered(mixed.log(), self.sampling).softmax(-1)
        # Where no source goes on there is no distribution, and nothing becomes a node.
        return probs.masked_fill(silent[:, None], 0.0)

    def advance(self, at: Frontier, rows: Tensor, tokens: Tensor) -> Frontier:
        there, picked = rows.to(self.device), tokens.to(self.device)
        mixed = self._mixed(at)[there, picked]
        likelihood = []
        for probs in self.spoken(at):
            given = mixed if probs is None else probs[there, picked]
            if probs is not None:
                given = torch.where(probs[there].sum(-1) > 0, given, mixed)
            likelihood.append(given.double())
        weights = at.state.weights[there] * torch.stack(likelihood, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        fronts = tuple(
            source.advance(front, rows, tokens)
            if front is not None and at.depth + 1 < source.max_depth
            else None
            for source, front in zip(self.sources, at.state.fronts, strict=True)
        )
        return Frontier(at.depth + 1, rows.shape[0], Nodes(weights, fronts))

    def spoken(self, at: Frontier) -> list[Tensor | None]:
        """What each source says at these nodes, (F, V), zero in rows where it is silent; None
        where it is at its end."""
        if not at.state.distributions:
            for source, front in zip(self.sources, at.state.fronts, strict=True):
                probs = (
                    None if front is None else self._distribution_of(source, front).to(self.device)
                )
                at.state.distributions.append(probs)
        found: list[Tensor | None] = at.state.distributions
        return found

    def _distribution_of(self, source: Proposal, front: Frontier) -> Tensor:
        if not isinstance(source, LookupProposal):
            return source.probs(front)
        # Of tokens that it does not name a look-up says nothing: they share what it leaves.
        children = source.expand(front, self.vocab_size)
        chances = children.log_q.exp()
        probs = torch.zeros((front.size, self.vocab_size), dtype=chances.dtype)
        probs.scatter_add_(1, children.tokens, chances)
        said = probs.sum(-1, keepdim=True)
        return torch.where(said > 0, probs + (1 - said) / self.vocab_size, 0.0)

    def _mixed(self, at: Frontier) -> Tensor:
        """(F, V), zero in rows where every source is silent."""
        total: Tensor | None = None
        share = torch.zeros_like(at.state.weights[:, 0])
        for i, probs in enumerate(self.spoken(at)):
            if probs is None:
                continue
            weight = at.state.weights[:, i] * (probs.sum(-1) > 0)
            part = weight[:, None].to(probs.dtype) * probs
            total = part if total is None else total + part
            share = share + weight
        if total is None:
            return torch.zeros((at.size, self.vocab_size), device=self.device)
        return total / share.clamp(min=torch.finfo(torch.float64).tiny)[:, None].to(total.dtype)
