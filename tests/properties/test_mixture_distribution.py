"""Mixtures keep the target's distribution under every rule, also with branches repeated or of
weight zero."""

from typing import Any

import pytest
import torch
from attrs import evolve

from draftwood.core.interfaces import Drafter, DraftWork
from draftwood.core.proposals import MixtureProposal, Proposal
from draftwood.core.randomness import Randomness
from draftwood.core.tree import TokenTree
from draftwood.core.values import Limits
from draftwood.plugins.trees.branches import Lottery, lottery_chain
from draftwood.plugins.trees.options import SampledOptions
from draftwood.testing import Enumerating, outcomes
from draftwood.testing.toy_pipelines import EVERY_TREE, PROMPT, TEMPERATURES, VERIFIERS, ToyPipeline
from draftwood.testing.toys import DEPTH, toy_mixtures

from . import faults

MIXTURES = [(1, "distinct")] + [
    (branches, kind) for branches in (2, 4) for kind in ("distinct", "repeated", "never")
]
PAIRS = [
    (tree, rule)
    for tree in ("best_first", "branches", "lottery", "sampled-chain", "sampled-iid")
    for rule in VERIFIERS
    if not ToyPipeline("mixture", tree, rule).refused and (rule != "match" or "sampled" not in tree)
]
CASES = [
    (*pair, *mixture, TEMPERATURES[(i + j) % 4], ("none", "top_k", "top_p")[(i + 2 * j) % 3])
    for i, pair in enumerate(PAIRS)
    for j, mixture in enumerate(MIXTURES)
]


@pytest.mark.parametrize(("tree", "rule", "branches", "kind", "temperature", "filters"), CASES)
def test_the_distribution_is_the_targets(
    tree: str, rule: str, branches: int, kind: Any, temperature: float, filters: str
) -> None:
    toy = ToyPipeline("mixture", tree, rule, "fixed", temperature, filters, seed=branches)
    toy.check(drafter=toy_mixtures(branches, kind, seed=branches))


def mixture(branches: int, kind: Any, seed: int, temperature: float = 1.0) -> MixtureProposal:
    toy = ToyPipeline(temperature=temperature)
    drafter = toy_mixtures(branches, kind, seed)
    proposal = drafter._propose(PROMPT, toy.options.sampling)
    assert isinstance(proposal, MixtureProposal)
    return proposal


@pytest.mark.parametrize(("branches", "kind"), MIXTURES)
@pytest.mark.parametrize("seed", range(4))
def test_a_lottery_draws_from_the_distributions_it_declares(
    branches: int, kind: Any, seed: int
) -> None:
    """A path's probability is the product of the distributions along it, and these are the
    mixture's conditionals at temperature 0."""
    proposal = mixture(branches, kind, seed)
    drawn: dict[tuple[int, ...], float] = {}
    declared: dict[tuple[int, ...], float] = {}

    def draw(rng: Enumerating) -> TokenTree:
        return Lottery().grow(0, proposal, Limits(4), lambda tree: True, rng).validate()

    for weight, tree, _ in outcomes(draw):
        path = tuple(tree.token_list[1:])
        assert len(path) == DEPTH
        drawn[path] = drawn.get(path, 0.0) + weight
        assert tree.q is not None
        declared[path] = float(tree.log_rho[-1].exp())
        cold, at = proposal.tempered(0.0), proposal.tempered(0.0).root()
        for node, token in enumerate(path):
            assert torch.allclose(tree.q[node], cold.probs(at)[0], atol=1e-15)
            if node + 1 < DEPTH:
                at = cold.advance(at, torch.tensor([0]), torch.tensor([token]))
    assert drawn == pytest.approx(declared, abs=1e-12)


def test_the_length_of_a_lottery_chain_does_not_depend_on_its_draw() -> None:
    proposal = mixture(4, "distinct", 1)

    def nodes(limits: Limits) -> set[int]:
        return {
            tree.nodes
            for _, tree, _ in outcomes(
                lambda rng: Lottery().grow(0, proposal, limits, lambda tree: True, rng)
            )
        }

    assert nodes(Limits(4)) == {DEPTH}
    assert nodes(Limits(1)) == nodes(Limits(4, 1)) == {1}
    assert nodes(Limits(0)) == nodes(Limits(4, 0)) == {0}


@pytest.mark.parametrize("kind", ["repeated", "never"])
def test_the_branches_tree_has_each_path_once_and_none_of_weight_zero(kind: Any) -> None:
    proposal = mixture(4, kind, 2)
    tree = EVERY_TREE["branches"][1]().grow(
        0, proposal, Limits(99), lambda tree: True, Enumerating()
    )
    tree.validate()
    leaves = [node for node in range(1, len(tree)) if not tree.children[node]]
    paths = {tuple(tree.token_list[i] for i in tree.path(node)[1:]) for node in leaves}
    weighted = 3 if kind == "never" else 4
    assert paths == set(map(tuple, proposal.greedy()[:weighted].tolist()))


class WrongLottery(Lottery):
    """Wrong: draws a branch and declares other distributions for its tokens."""

    def __init__(self, declared: str) -> None:
        super().__init__()
        self.declared = declared

    def grow(
        self, anchor: int, proposal: Proposal, limits: Limits, should_expand: Any, rng: Randomness
    ) -> TokenTree:
        tree = super().grow(anchor, proposal, limits, should_expand, rng)
        assert isinstance(proposal, MixtureProposal)
        if tree.q is None:
            return tree
        cold = proposal.tempered(0.0)
        if self.declared == "marginals":  # of the branches' tokens, independent of the path before
            hot = torch.nn.functional.one_hot(cold.greedy(), tree.q.shape[1]).double()
            return faults.redeclared(
                tree, torch.einsum("k,kdv->dv", cold.weights(), hot)[: tree.nodes]
            )
        if self.declared == "untempered":
            other = evolve(proposal, prior_temperature=1.0)
            drawn = int(
                (proposal.greedy()[:, : tree.nodes] == tree.tokens[1:]).all(1).long().argmax()
            )
            return faults.redeclared(tree, lottery_chain(anchor, other, drawn, tree.nodes).q)
        raise AssertionError(self.declared)


class TemperedPriors(Drafter):
    """Mixtures whose prior is tempered far from 1."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def open(self, target: Any, sampling: Any) -> Any:
        return self.inner.open(target, sampling)

    def propose(self, work: Any) -> list[Proposal]:
        items: list[DraftWork] = list(work)
        return [evolve(mixture, prior_temperature=3.0) for mixture in self.inner.propose(items)]


@pytest.mark.parametrize("declared", ["marginals", "untempered"])
@pytest.mark.parametrize("rule", ["ratio", "multi_round", "traversal"])
def test_a_lottery_that_declares_another_distribution_is_rejected(declared: str, rule: str) -> None:
    """Negative control of the first test: the draw is right, the declared distribution is not."""
    drafter = TemperedPriors(toy_mixtures(4, "distinct", 1))
    toy = ToyPipeline("mixture", "lottery", rule, seed=1)
    toy.check(drafter=drafter)
    with pytest.raises(AssertionError, match="first wrong prefix"):
        toy.check(drafter=drafter, tree=WrongLottery(declared))
    assert toy.compare(drafter=drafter, tree=WrongLottery(declared)).max_error > 1e-3


PAIR = SampledOptions(widths=(2,))


@pytest.mark.parametrize(
    ("tree", "rule", "right", "wrong"),
    [
        (
            "sampled-iid",
            "multi_round",
            faults.Sampled(faults.WIDE),
            faults.MergedDuplicates(faults.WIDE),
        ),
        ("sampled-without", "traversal", faults.Sampled(PAIR), faults.CutByScore(PAIR)),
    ],
    ids=["merged duplicates", "cut by score"],
)
def test_faults_of_sampled_trees_are_rejected_over_mixtures(
    tree: str, rule: str, right: Any, wrong: Any
) -> None:
    drafter = toy_mixtures(4, "repeated", 2)
    toy = ToyPipeline("mixture", tree, rule, seed=2)
    toy.check(drafter=drafter, tree=right)
    with pytest.raises(AssertionError, match="first wrong prefix"):
        toy.check(drafter=drafter, tree=wrong)
