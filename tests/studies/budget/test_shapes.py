"""Random trees and beams of equal size."""

import random

import pytest
import torch

from draftwood.core.options import Sampling
from draftwood.core.proposals import FactorizedProposal, Vocabulary
from draftwood.core.values import Limits
from draftwood.plugins.trees.best_first import BestFirst
from draftwood.plugins.trees.options import BestFirstOptions
from studies.budget.recording import SIZES
from studies.budget.shapes import Conditionals, beam, random_tree


def proposal_of(depth: int = 5, width: int = 40) -> FactorizedProposal:
    logits = 3 * torch.randn(depth, width, generator=torch.Generator().manual_seed(0))
    return FactorizedProposal(logits, Sampling(1.0), Vocabulary(width))


class ByPath(FactorizedProposal):
    """The same without a table: conditionals are read path by path."""

    def table(self, k: int) -> None:
        return None


@pytest.mark.parametrize("nodes", SIZES)
def test_random_trees_and_beams_have_the_size_and_at_most_the_score_of_best_first(nodes):
    proposal = proposal_of()
    by_path = ByPath(proposal.logits, proposal.sampling, proposal.vocabulary)
    for grow in (beam, lambda *arguments: random_tree(*arguments, random.Random(1))):
        tree = grow(0, Conditionals(proposal), nodes, 5).validate()
        assert tree.nodes == nodes
        assert torch.equal(tree.tokens, grow(0, Conditionals(by_path), nodes, 5).tokens)
    best = BestFirst(BestFirstOptions()).grow
    whole = best(0, proposal, Limits(nodes), lambda g: True, None)
    for grow in (beam, lambda *arguments: random_tree(*arguments, random.Random(1))):
        tree = grow(0, Conditionals(proposal), nodes, 5)
        assert float(tree.expected_tokens()[-1]) <= float(whole.expected_tokens()[-1]) + 1e-12
