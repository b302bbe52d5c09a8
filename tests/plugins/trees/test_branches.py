"""Trees over a mixture's branches hold what every policy must, and refuse other distributions."""

import math

import pytest
import torch

from draftwood.core.config.compose import check_composition
from draftwood.core.config.pipeline import load_config
from draftwood.core.errors import CompositionError, TreeError
from draftwood.core.options import Sampling
from draftwood.core.proposals import MixtureProposal, Proposal, Vocabulary
from draftwood.core.randomness import Seeded
from draftwood.core.values import Limits
from draftwood.plugins.trees.branches import Branches, Lottery
from draftwood.testing import toy_proposal
from draftwood.testing.suites import TreePolicySuite

from .reference import always, listed


class TestBranches(TreePolicySuite):
    plugin = "branches"


class TestLottery(TreePolicySuite):
    plugin = "lottery"

    def drawn_from(self, proposal: Proposal) -> Proposal:
        """The mixture of the greedy branches, whatever the request's temperature."""
        return proposal.tempered(0.0)


def distributions(
    prior: list[float], branches: list[list[list[float]]], **options: float
) -> MixtureProposal:
    size = len(branches[0][0])
    return MixtureProposal(
        torch.tensor(prior, dtype=torch.float64).log(),
        torch.tensor(branches, dtype=torch.float64).log(),
        Sampling(1.0),
        Vocabulary(size),
        **options,
    )


THREE = distributions(
    [0.5, 0.3, 0.2],
    [
        [[0.8, 0.1, 0.1], [0.6, 0.4, 0.0]],
        [[0.9, 0.1, 0.0], [0.1, 0.9, 0.0]],
        [[0.0, 0.0, 1.0], [0.0, 0.0, 1.0]],
    ],
)


def test_branches_are_merged_and_grown_by_the_mixtures_scores() -> None:
    tree = Branches().grow(9, THREE, Limits(99), always, Seeded(0)).validate()
    scores = {path: math.exp(score) for score, path in listed(tree)}
    assert set(scores) == {(0,), (0, 0), (0, 1), (2,), (2, 2)}
    assert scores[(0,)] == pytest.approx(0.5 * 0.8 + 0.3 * 0.9)
    assert scores[0, 0] == pytest.approx(0.5 * 0.8 * 0.6 + 0.3 * 0.9 * 0.1)
    assert scores[0, 1] == pytest.approx(0.5 * 0.8 * 0.4 + 0.3 * 0.9 * 0.9)
    assert tree.log_rho.tolist() == sorted(tree.log_rho.tolist(), reverse=True)


def test_scores_that_rounding_raises_along_a_path_still_make_a_tree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def rounded(probs: MixtureProposal, paths: torch.Tensor) -> torch.Tensor:
        scores = exact(probs, paths)
        for depth in range(1, scores.shape[1]):
            scores[:, depth] = torch.nextafter(scores[:, depth - 1], scores.new_tensor(0.0))
        return scores

    exact = MixtureProposal.path_scores
    certain = [[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]
    probs = distributions([0.6, 0.4], [[[1.0, 0.0], *certain], [[0.0, 1.0], *certain]])
    monkeypatch.setattr(MixtureProposal, "path_scores", rounded)
    raised = probs.path_scores(probs.greedy())
    assert (raised.diff() > 0).all()
    tree = Branches().grow(9, probs, Limits(99), always, Seeded(0)).validate()
    assert tree.nodes == 8
    scores = tree.log_rho_list
    for node, parent in enumerate(tree.parent_list[1:], 1):
        assert scores[node] <= scores[parent]
    for nodes in range(8):
        tree.cut(nodes).validate()


def test_the_lotterys_distributions_are_shares_of_the_branches_that_agree() -> None:
    trees = [Lottery().grow(9, THREE, Limits(99), always, Seeded(seed)) for seed in range(30)]
    drawn = {tuple(tree.token_list[1:]): tree for tree in trees}
    assert set(drawn) == {(0, 0), (0, 1), (2, 2)}
    q = drawn[0, 1].q
    assert q is not None
    assert torch.allclose(q, torch.tensor([[0.8, 0.0, 0.2], [0.625, 0.375, 0.0]]).double())


def test_z_t_tempers_the_lottery() -> None:
    cold = distributions([0.6, 0.4], [[[1.0, 0.0]], [[0.0, 1.0]]], prior_temperature=0.5)
    tree = Lottery().grow(9, cold, Limits(9), always, Seeded(0))
    assert tree.q is not None
    assert tree.q[0].tolist() == pytest.approx([0.36 / 0.52, 0.16 / 0.52])


@pytest.mark.parametrize("policy", [Branches(), Lottery()])
def test_other_distributions_have_no_branches(policy: Branches | Lottery) -> None:
    proposal = toy_proposal("factorized", 0, Sampling(1.0))
    with pytest.raises(TreeError, match="use it with drafter dblast"):
        policy.grow(0, proposal, Limits(4), always, Seeded(0))


@pytest.mark.parametrize(("tree", "rule"), [("branches", "match"), ("lottery", "ratio")])
def test_other_drafters_are_refused_before_loading(tree: str, rule: str) -> None:
    config = load_config(
        {
            "target": {"model": "some/model"},
            "drafter": {"use": "ngram"},
            "tree": {"use": tree},
            "controller": {"use": "fixed"},
            "verifier": {"use": rule},
        }
    )
    with pytest.raises(CompositionError, match=f"'{tree}' grows from mixture proposals"):
        check_composition(config)
