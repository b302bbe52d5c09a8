"""The contract of every tree policy."""

from typing import Any, ClassVar

import torch
from hypothesis import strategies as st

from draftwood.core.draws import Draws
from draftwood.core.interfaces import TreePolicy
from draftwood.core.options import Sampling
from draftwood.core.proposals import Frontier, Proposal
from draftwood.core.randomness import Randomness, Seeded
from draftwood.core.registry.plugin import Kind
from draftwood.core.tree import TokenTree
from draftwood.core.values import Limits
from draftwood.testing import strategies
from draftwood.testing.suites.base import Suite
from draftwood.testing.toy_pipelines import (
    FORMS,
    VERIFIERS,
    ToyPipeline,
    extreme_shapes,
    rules_for,
    trees_with,
)
from draftwood.testing.toys import toy_proposal

Case = tuple[Proposal, Limits, int]


class TreePolicySuite(Suite):
    """Trees are valid and within their limits, and the output distribution is the target's.

    Drawn trees carry exactly the distributions that they were drawn from.
    """

    kind: ClassVar[Kind] = Kind.TREE

    def test_trees_are_valid_and_within_their_limits(self) -> None:
        def check(case: Case) -> None:
            proposal, limits, seed = case
            tree = self.grow(proposal, limits, seed).validate()
            assert tree.nodes <= limits.nodes
            assert max(tree.depth_list) <= proposal.max_depth
            assert limits.depth is None or max(tree.depth_list) <= limits.depth
            assert tree.token_list[0] == 0
            assert tree.nodes == 0 or tree.draws is self.traits.draws

        self.search(self._cases(), check)

    def test_every_prefix_of_the_growth_order_is_a_tree(self) -> None:
        def check(case: Case) -> None:
            tree = self.grow(*case)
            if tree.draws is Draws.DETERMINISTIC:
                for nodes in range(len(tree)):
                    tree.cut(nodes).validate()

        self.search(self._cases(), check)

    def test_scores_never_increase_along_a_path_and_are_never_zero(self) -> None:
        def check(case: Case) -> None:
            tree = self.grow(*case)
            for node in range(1, len(tree)):
                assert -torch.inf < tree.log_rho[node] <= tree.log_rho[tree.parent_list[node]]

        self.search(self._cases(), check)

    def test_drawn_nodes_carry_the_distribution_they_were_drawn_from(self) -> None:
        def check(case: Case) -> None:
            tree = self.grow(*case)
            if tree.q is None:
                return
            source = self.drawn_from(case[0])
            for parent, siblings in enumerate(tree.children):
                probs = _distribution_after(source, tree, parent) if siblings else None
                for node in siblings:
                    assert probs is not None
                    assert torch.allclose(tree.q[node - 1], probs), f"q of node {node}"
                    assert probs[tree.token_list[node]] > 0
                    if tree.draws is Draws.WITHOUT_REPLACEMENT:
                        probs = _without(probs, tree.token_list[node])

        self.search(self._cases(), check)

    def test_the_same_input_gives_the_same_tree(self) -> None:
        def check(case: Case) -> None:
            one, two = self.grow(*case), self.grow(*case)
            assert one.token_list == two.token_list
            assert one.parent_list == two.parent_list
            assert torch.equal(one.log_rho, two.log_rho)

        self.search(self._cases(), check)

    def test_should_expand_is_called_only_where_a_level_costs_a_forward(self) -> None:
        for form in self._forms():
            calls: list[int] = []

            def never(tree: TokenTree, calls: list[int] = calls) -> bool:
                calls.append(tree.nodes)
                return False

            proposal = toy_proposal(form, 0, Sampling(1.0))
            tree = self.build().grow(0, proposal, Limits(4), never, Seeded(0))
            if proposal.pass_per_level:
                assert max(tree.depth_list) <= 1
            else:
                assert calls == []

    def test_the_output_distribution_is_the_targets(self) -> None:
        """Under budgets that depend on everything a controller may see.

        This finds a policy that drops nodes depending on what it has drawn.
        """
        rules = rules_for(self.traits.draws)

        def check(case: tuple[ToyPipeline, str]) -> None:
            toy, rule = case
            toy.check(tree=self.build(), verifier=VERIFIERS[rule]())

        toys = strategies.toy_pipelines(
            self._forms(), ("sampled-chain",), ("match",), ("fixed", "adversarial")
        )
        self.search(st.tuples(toys, st.sampled_from(rules)), check)

    def test_the_output_distribution_is_the_targets_in_extreme_shapes(self) -> None:
        """By enumeration: deep, wide, repeated, late and tied toys."""
        draws = self.traits.draws
        rule, tree = rules_for(draws)[-1], trees_with([draws])[0]
        for shape in extreme_shapes(draws):
            for seed in range(2):
                toy = ToyPipeline(self._forms()[0], tree, shape=shape, seed=seed)
                toy.check(tree=self.build(), verifier=VERIFIERS[rule]())

    def drawn_from(self, proposal: Proposal) -> Proposal:
        """The proposal whose next-token distributions the nodes are drawn from.

        Override it for a policy that does not draw from the proposal as it is.
        """
        return proposal

    def grow(self, proposal: Proposal, limits: Limits, seed: int) -> TokenTree:
        """A tree of a fresh policy; a deterministic one must not use the randomness."""
        policy: TreePolicy = self.build()
        drawn = self.traits.draws is not Draws.DETERMINISTIC
        rng: Randomness = Seeded(seed) if drawn else _NoRandomness()
        return policy.grow(0, proposal, limits, lambda tree: True, rng)

    def _forms(self) -> list[Any]:
        allowed = self.traits.forms
        return [form for form in FORMS if allowed is None or form in allowed]

    def _cases(self) -> Any:
        return st.tuples(
            strategies.proposals(self._forms()), strategies.limits(), st.integers(0, 999)
        )


class _NoRandomness(Randomness):
    def stream(self, name: str) -> Randomness:
        return self

    def categorical(self, probs: torch.Tensor, position: int, draw: int = 0) -> int:
        raise AssertionError("a policy of deterministic trees drew a token")

    def accept(self, probability: float, position: int, draw: int = 0) -> bool:
        raise AssertionError("a policy of deterministic trees drew a number")


def _distribution_after(proposal: Proposal, tree: TokenTree, node: int) -> torch.Tensor:
    at: Frontier = proposal.root()
    for step in tree.path(node)[1:]:
        at = proposal.advance(at, torch.tensor([0]), torch.tensor([tree.token_list[step]]))
    return proposal.probs(at)[0]


def _without(probs: torch.Tensor, token: int) -> torch.Tensor:
    rest = probs.clone()
    rest[token] = 0.0
    return rest / rest.sum()
